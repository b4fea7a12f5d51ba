"""Asks an OpenAI-compatible service for completions of a fixed length."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx

from specray.cli.bench.plan import System
from specray.errors import StartupError

REQUEST_TIMEOUT_S = 300.0


class Endpoint:
    """A service's `/v1`, and the model that it serves.

    `start` asks for the model's name; every method raises StartupError when the service can't be
    reached or refuses.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1") else f"{base}/v1"
        self._http = httpx.AsyncClient(
            timeout=REQUEST_TIMEOUT_S, transport=transport, limits=httpx.Limits(max_connections=64)
        )
        self._model = ""

    async def start(self) -> None:
        """Finds out which model is served."""
        models = await self._request("GET", "/models")
        self._model = models["data"][0]["id"]

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def complete_all(
        self,
        prompts: Sequence[str],
        system: System,
        *,
        concurrency: int,
        temperature: float,
        max_tokens: int,
    ) -> int:
        """Answers all prompts, so many at a time; returns the tokens that were generated."""
        gate = asyncio.Semaphore(concurrency)

        async def complete(prompt: str, seed: int) -> int:
            async with gate:
                body = _make_body(self._model, prompt, system, temperature, max_tokens, seed)
                answer = await self._request("POST", "/chat/completions", body)
                return int(answer["usage"]["completion_tokens"])

        return sum(await asyncio.gather(*(complete(p, seed) for seed, p in enumerate(prompts))))

    async def _request(self, method: str, path: str, body: Any = None) -> Any:
        try:
            response = await self._http.request(method, self._url + path, json=body)
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            text = error.response.text[:300]
            raise StartupError(
                f"{self._url}{path} answered {error.response.status_code}: {text}"
            ) from error
        except httpx.HTTPError as error:
            raise StartupError(
                f"{self._url}{path} can't be reached ({error!r}); is the service running?"
            ) from error
        return response.json()


def _make_body(
    model: str, prompt: str, system: System, temperature: float, max_tokens: int, seed: int
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "ignore_eos": True,  # equal lengths, whatever the answer
    }
    if system == "off":
        body["vllm_xargs"] = {"num_speculative_tokens": 0}
    return body
