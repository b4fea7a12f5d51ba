"""What the relay saw of one request's speculation, for people who want to look at it."""

import threading
from dataclasses import dataclass, field

from specray.types import Accepted, OpenSession, SessionFrame


@dataclass(slots=True)
class _Session:
    num_prompt_tokens: int
    accepted: list[Accepted] = field(default_factory=list)  # not taken yet
    is_closed: bool = False


class SessionWatch:
    """One request's session, while the relay has the watch; it never touches what is relayed.

    The relay's thread feeds it, any other may ask.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self._lock = threading.Lock()
        self._key: tuple[str, int] | None = None
        self._session: _Session | None = None

    # The relay's thread.

    def from_target(self, target: str, frame: SessionFrame) -> None:
        """A target's news."""
        with self._lock:
            for opened in frame.opens:
                self._open((target, opened.session_id), opened)
            if self._session is None or self._key is None or self._key[0] != target:
                return
            for commit in frame.commits:
                if commit.session_id == self._key[1]:
                    self._session.accepted += commit.accepted
            self._session.is_closed |= self._key[1] in frame.closes

    # Whoever looks.

    def take(self) -> list[Accepted]:
        """What has been accepted since the last call, counted from the answer's beginning."""
        with self._lock:
            if self._session is None:
                return []
            accepted, self._session.accepted = self._session.accepted, []
            start = self._session.num_prompt_tokens
            return [a._replace(position=a.position - start) for a in accepted]

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come; so too if there has been no session."""
        with self._lock:
            return self._session is None or self._session.is_closed

    def _open(self, key: tuple[str, int], opened: OpenSession) -> None:
        is_ours = self._request_id and opened.request_id == self._request_id
        if is_ours and self._session is None:  # else opened again, as its draft was lost
            self._key, self._session = key, _Session(opened.num_prompt_tokens)
