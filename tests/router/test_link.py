"""A link outlives what goes wrong on it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from specray.errors import StreamClosedError
from specray.router import link
from specray.router.link import Link

ADDRESS = "draft:1"


class FakeStream:
    """Carries one frame and ends."""

    num_bytes_received = 1

    def __init__(self, frame: str) -> None:
        self._frame = frame

    async def __aiter__(self) -> AsyncIterator[str]:
        yield self._frame

    async def close(self) -> None: ...


class Events:
    """Fails at frames that say so."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.is_over = asyncio.Event()

    def up(self, _address: str) -> None:
        self.seen.append("up")

    def received(self, _address: str, frame: str, _num_bytes: int) -> None:
        if frame == "faulty":
            raise ZeroDivisionError("a fault of ours")
        self.seen.append(frame)

    def down(self, _address: str) -> None:
        self.seen.append("down")
        if "sound" in self.seen:
            self.is_over.set()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "_FIRST_BACKOFF_S", 0.0)


def test_whatever_ends_a_stream_the_next_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "specray.router.link")
    seen = asyncio.run(_link_through("unreachable", "faulty", "sound"))

    assert seen == ["up", "down", "up", "sound", "down"]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert "a fault of ours" in caplog.text


async def _link_through(*frames: str) -> list[str]:
    left, events = list(frames), Events()

    async def connect(_address: str) -> FakeStream:
        if not left:
            await asyncio.Event().wait()
        frame = left.pop(0)
        if frame == "unreachable":
            raise StreamClosedError(frame)
        return FakeStream(frame)

    one = Link(ADDRESS, connect, events)
    async with asyncio.timeout(5):
        await events.is_over.wait()
    await one.close()
    return events.seen
