"""Tokens that grow, as an array."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class Text:
    """Tokens in 4 bytes each, of which only new ones are copied."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        """Takes the first of them."""
        self._room = np.array(token_ids, np.int32)  # the text, and room for more
        self._length = len(token_ids)

    def __len__(self) -> int:
        return self._length

    def append(self, token_ids: Sequence[int] | NDArray[np.int32]) -> None:
        """Adds tokens at the end."""
        length = self._length + len(token_ids)
        if length > len(self._room):
            grown = np.empty(2 * length, np.int32)
            grown[: self._length] = self.token_ids
            self._room = grown
        self._room[self._length : length] = token_ids
        self._length = length

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """A view, which is right until the text changes."""
        return self._room[: self._length]
