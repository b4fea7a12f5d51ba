"""An n-gram model with back-off: what its target says behind the last few tokens.

`specray distill` counts it and puts it beside a draft as one safetensors file. For each order n,
from 1 token of context on:

| tensor | shape | holds |
|---|---|---|
| `n.keys` | [contexts] int64, ascending | `context_keys` of the contexts that were seen |
| `n.starts` | [contexts + 1] int32 | where each context's followers begin |
| `n.token_ids` | [followers] uint16 or int32 | likely next tokens, most likely first |
| `n.shares` | [followers] float16 | their probabilities, lower orders mixed in; below 1 together |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from specray.errors import InvalidConfigError

NGRAM_FILE = "ngrams.safetensors"  # beside a draft's weights

_FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio
_MASK = 2**64 - 1


class Opinion(NamedTuple):
    """Part of a distribution over the next token; what is left of 1 is for others to fill."""

    token_ids: NDArray[np.int64]  # [tokens]
    probabilities: NDArray[np.float32]  # [tokens], together below 1


class Likeliest(NamedTuple):
    """The token that most likely follows."""

    token_id: int
    share: float


@dataclass(frozen=True, slots=True)
class NgramOrder:
    """All contexts of one length, as in the file."""

    keys: NDArray[np.int64]
    starts: NDArray[np.int32]
    token_ids: NDArray[np.integer]
    shares: NDArray[np.float16]


def context_keys(contexts: NDArray[np.integer]) -> NDArray[np.int64]:
    """A key for each context: a collision costs a wrong guess, nothing else.

    Args:
        contexts: [contexts, n], the token before the one to guess first.
    """
    keys = np.zeros(len(contexts), np.uint64)
    for column in contexts.T:
        keys = (keys ^ (column.astype(np.uint64) + np.uint64(1))) * np.uint64(_FACTOR)
        keys ^= keys >> np.uint64(29)
    return keys.view(np.int64)


class NgramModel:
    """Answers from the longest context that it knows."""

    def __init__(self, orders: Sequence[NgramOrder]) -> None:
        """Takes what is known behind 1 token, behind 2, and so on."""
        self.orders = orders

    def opinion(self, context: Sequence[int]) -> Opinion | None:
        """What may follow a text, most likely first; None if it can't say.

        Args:
            context: the text, or its last tokens; the latest last.
        """
        found = self._find(context)
        if found is None:
            return None
        order, place = found
        part = slice(int(order.starts[place]), int(order.starts[place + 1]))
        return Opinion(
            order.token_ids[part].astype(np.int64), order.shares[part].astype(np.float32)
        )

    def likeliest(self, context: Sequence[int]) -> Likeliest | None:
        """The first of `opinion`, in a fraction of its time."""
        found = self._find(context)
        if found is None:
            return None
        order, place = found
        first = order.starts[place]
        if first == order.starts[place + 1]:
            return None
        return Likeliest(int(order.token_ids[first]), float(order.shares[first]))

    def chain(self, text: Sequence[int]) -> Iterator[Likeliest]:
        """What most likely follows a text, what follows that, and so on while it can say."""
        context = list(text[-self.context_size :])
        while (found := self.likeliest(context)) is not None:
            yield found
            context = [*context, found.token_id][-self.context_size :]

    @property
    def context_size(self) -> int:
        """Tokens at a text's end, at most, that it looks at."""
        return len(self.orders)

    def _find(self, context: Sequence[int]) -> tuple[NgramOrder, int] | None:
        """Where the longest context that is known stands."""
        latest = reversed(context[-self.context_size :])
        keys = list(accumulate(latest, _extended, initial=0))[1:]  # shortest first, like orders
        for order, key in reversed(list(zip(self.orders, keys, strict=False))):
            signed = key - (key >> 63 << 64)
            place = int(order.keys.searchsorted(signed))
            if place < len(order.keys) and order.keys[place] == signed:
                return order, place
        return None


def _extended(key: int, token_id: int) -> int:
    """The key of a context that reaches one token further back, as by `context_keys`."""
    key = (key ^ (token_id + 1)) * _FACTOR & _MASK
    return key ^ key >> 29


def load_ngrams(folder: Path) -> NgramModel | None:
    """The n-gram model of a draft's folder; None if it has none.

    Raises:
        InvalidConfigError: The file is broken.
    """
    path = folder / NGRAM_FILE
    if not path.is_file():
        return None
    try:
        # Read, not mapped: a look-up in what is written anew in its place would be the last.
        tensors: dict[str, Any] = load_file(path)
        sizes = range(1, 1 + sum(name.endswith(".keys") for name in tensors))
        orders = [
            NgramOrder(**{field: tensors[f"{n}.{field}"] for field in NgramOrder.__slots__})
            for n in sizes
        ]
        _check(orders)
    except (KeyError, OSError, SafetensorError, TypeError, ValueError) as error:
        raise InvalidConfigError(f"{path} is broken ({error}); make the draft anew") from error
    return NgramModel(orders)


def _check(orders: Sequence[NgramOrder]) -> None:
    """Raises ValueError where a look-up might leave an array, or yield no probability."""
    if not orders:
        raise ValueError("no contexts")
    for order in orders:
        num_followers = int(order.starts[-1]) if len(order.starts) else -1
        if len(order.starts) != len(order.keys) + 1 or (np.diff(order.starts) < 0).any():
            raise ValueError("starts do not fit keys")
        if not num_followers == len(order.token_ids) == len(order.shares) or order.starts[0] < 0:
            raise ValueError("followers do not fit starts")
        if not ((order.shares >= 0) & (order.shares <= 1)).all():
            raise ValueError("shares that are no probabilities")
