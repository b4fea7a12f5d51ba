"""What of a timeline concerns one request, also where many were served at once."""

from collections.abc import Collection, Sequence
from pathlib import Path

from specray.cli.travels import Event, Session, followed, session_of, sessions_of
from specray.errors import InvalidConfigError

_PREFIXES = ("chatcmpl-", "cmpl-")  # of the id in a response's body, before that of its request
_MOST_NAMED = 5


def only(request: str, events: Sequence[Event], folder: Path) -> list[Event]:
    """The events of one request, at its target and at the drafts that it has had.

    Of what was done for several requests at once, its own part is told, and `batch_size`: how many
    there were. Several sessions may bear its id: choices of one answer, or a repetition.

    Args:
        request: the client's or Serve's id of it (`x-request-id`), vLLM's, or the number of its
            session.
        events: of all.
        folder: where they were found.

    Raises:
        InvalidConfigError: No request is called so, or sessions of several targets have the number.
    """
    chosen = _sessions(request, events, folder)
    chosen |= {draft for draft, target in followed(events).items() if target in chosen}
    return [part for event in events if (part := _part(event, chosen)) is not None]


def _sessions(request: str, events: Sequence[Event], folder: Path) -> set[Session]:
    """Its sessions at the target."""
    arrived = [event for event in events if event["name"] == "request arrived"]
    if named := {session_of(event) for event in arrived if request in _names(event)}:
        return named
    numbered = {session_of(e): e for e in arrived if request == str(session_of(e).number)}
    if len(numbered) == 1:
        return set(numbered)
    if numbered:
        raise InvalidConfigError(
            f"--request {request}: {len(numbered)} targets have a session of that number; name "
            f"its request: {_listed(list(numbered.values()))}"
        )
    raise InvalidConfigError(
        f"--request {request}: {folder} has no request of that id that might speculate; it has "
        f"{_listed(arrived)}"
    )


def _names(event: Event) -> set[str]:
    request, of_vllm = event["args"]["request"], event["args"]["vllm_request"]
    ids = {f"{prefix}{request}" for prefix in ("", *_PREFIXES)} if request else set()
    return ids | {of_vllm}


def _listed(arrived: Sequence[Event]) -> str:
    """The latest of them."""
    facts = [event["args"] for event in arrived[-_MOST_NAMED:]]
    listed = [fact["request"] or fact["vllm_request"] for fact in facts]
    num_others = len(arrived) - len(listed)
    return ", ".join(listed or ["none"]) + (f" and {num_others} before" if num_others else "")


def _part(event: Event, chosen: Collection[Session]) -> Event | None:
    """What of the event concerns these sessions, if anything does."""
    if event["ph"] == "M":  # the name of a process
        return event if any(session.pid == event["pid"] for session in chosen) else None
    if session_of(event) in chosen:
        return event
    sessions = sessions_of(event)
    places = [place for place, session in enumerate(sessions) if session in chosen]
    if not places:
        return None
    own = {
        name: [fact[place] for place in places] if isinstance(fact, list) else fact
        for name, fact in event["args"].items()
    }
    return event | {"args": own | {"batch_size": len(sessions)}}
