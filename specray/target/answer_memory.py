"""The answers that a target has given lately, to copy from them.

They are kept as text, which is scanned, not indexed as a draft does it with the same settings
(`draft.prompt_lookup.shared_tokens`, `specray.draft.shared_index`): here a token takes 4 bytes of
the engine's process instead of 2 kB. Whoever shares a memory can tell from the speed of an answer
what others were answered, so there is none unless asked for, and each tenant has one of its own.
"""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specray.target.text import Text

END = -1  # behind each answer; no token has this id
MARGIN = 8  # places before the first answer, so that a suffix of so many tokens can be compared

_NOTHING = np.zeros(0, np.int32)


class AnswerMemory:
    """The latest answers to each tenant: at most `max_tokens` over all, with what separates them.

    Where that is too little, tenants that have not been answered for longest are forgotten; of a
    single one's answers the latest half is kept.
    """

    def __init__(self, max_tokens: int, *, is_common: bool = False) -> None:
        """Takes its size, and whether all tenants share one."""
        self._max_tokens = max_tokens
        self._is_common = is_common
        self._texts: OrderedDict[str, Text] = OrderedDict()  # the latest answered last
        self._num_tokens = 0

    def __len__(self) -> int:
        return self._num_tokens

    def add(self, tenant: str, token_ids: Sequence[int]) -> None:
        """Takes in an answer; of one that is too long, the beginning."""
        if not token_ids:
            return
        token_ids = [*token_ids[: max(0, self._max_tokens // 2 - 1)], END]
        key = self._key(tenant)
        before = self._texts.pop(key, None)
        text = before or Text([END] * MARGIN)
        if before is not None:
            self._num_tokens -= len(before)
        if len(text) + len(token_ids) > self._max_tokens:
            kept = text.token_ids[-max(1, self._max_tokens // 2 - MARGIN) :]
            text = Text([END] * MARGIN)
            text.append(kept)
        text.append(token_ids)
        self._texts[key] = text
        self._num_tokens += len(text)
        while self._num_tokens > self._max_tokens:
            _, forgotten = self._texts.popitem(last=False)
            self._num_tokens -= len(forgotten)

    def text(self, tenant: str) -> NDArray[np.int32]:
        """What is remembered for a tenant: `MARGIN` times `END`, then each answer and `END`."""
        text = self._texts.get(self._key(tenant))
        return _NOTHING if text is None else text.token_ids

    def _key(self, tenant: str) -> str:
        return "" if self._is_common else tenant
