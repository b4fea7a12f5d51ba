import re
from importlib.resources import files

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specray.serve.ui.routes import add_page


@pytest.fixture
def client() -> TestClient:
    return TestClient(add_page(FastAPI()), root_path="/under")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/ui/", "text/html"), ("/ui/style.css", "text/css"), ("/ui/app.js", "text/javascript")],
)
def test_its_files(client: TestClient, path: str, kind: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_the_short_address_leads_to_the_folder_under_any_prefix(client: TestClient) -> None:
    answer = client.get("/ui", follow_redirects=False)
    assert answer.headers["location"] == "/under/ui/"


def test_it_names_nothing_outside_its_folder() -> None:
    page = files("specray.serve.ui") / "page"
    html = (page / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="([^"#]+)"', html)) - {"data:,"}
    assert named == {"style.css", "app.js"}
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", (page / "app.js").read_text())
    assert not re.search(r"https?://|url\(|@import", (page / "style.css").read_text())
