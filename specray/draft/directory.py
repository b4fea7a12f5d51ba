"""Whose sessions they are: a router's session ids are unique on its stream only."""

from itertools import count
from typing import NamedTuple

from specray.draft.inbox import Router


class Address(NamedTuple):
    """A session as its router knows it."""

    router: Router
    session_id: int


class Directory:
    """Translates between routers' session ids and ids that are unique in this process."""

    def __init__(self) -> None:
        self._next_id = count(1)
        self._ids: dict[Address, int] = {}
        self._addresses: dict[int, Address] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, address: Address) -> int:
        """A new id for the session."""
        session_id = next(self._next_id)
        self._ids[address] = session_id
        self._addresses[session_id] = address
        return session_id

    def find(self, address: Address) -> int | None:
        """The session's id, while it is open."""
        return self._ids.get(address)

    def is_held(self, session_id: int) -> bool:
        """Whether the session is open."""
        return session_id in self._addresses

    def address(self, session_id: int) -> Address:
        """Where the session came from."""
        return self._addresses[session_id]

    def remove(self, session_id: int) -> Address:
        """Forgets a session."""
        address = self._addresses.pop(session_id)
        del self._ids[address]
        return address

    def of_router(self, router: Router) -> list[int]:
        """Ids of all the router's sessions."""
        return [i for address, i in self._ids.items() if address.router is router]
