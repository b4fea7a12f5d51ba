"""The page's files and endpoints."""

from collections.abc import Callable, Coroutine
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

_PAGE = files("specray.serve.ui") / "page"
_KINDS = {"index.html": "text/html", "style.css": "text/css", "app.js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}

ENDPOINTS = {
    "ui_status": lambda app: app.get("/ui/status"),
    "ui_answer": lambda app: app.post("/ui/answer"),
    "speculation": lambda app: app.get("/speculation"),
}
"""Methods of the router, in the form of Ray Serve LLM's endpoint map."""


def add_page(app: FastAPI) -> FastAPI:
    """The app, with the files of the page."""
    app.add_api_route("/ui", _to_page, include_in_schema=False)
    for name, kind in _KINDS.items():
        path = "/ui/" if name == "index.html" else f"/ui/{name}"
        answer = Response((_PAGE / name).read_bytes(), media_type=kind, headers=_HEADERS)
        app.add_api_route(path, _file(answer), include_in_schema=False)
    return app


def _file(answer: Response) -> Callable[[], Coroutine[None, None, Response]]:
    async def file() -> Response:
        return answer

    return file


async def _to_page(request: Request) -> RedirectResponse:
    """To the folder's address, relative to which the page names its files."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}/ui/")
