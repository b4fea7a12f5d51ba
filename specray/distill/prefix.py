"""The layers that the student shares with the start of the target are run once, not every epoch."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specray.distill.shards import Answer
from specray.distill.student import attach_prefix, detach_prefix, layers_of
from specray.distill.work import write_whole

_TOLERANCE = 1e-3
_TOKENS_AT_ONCE = 8192  # of a pass, padding included


def prefix_length(layers: Sequence[int], limit: int) -> int:
    """How many of the student's first layers are the target's own first ones, at most `limit`."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], enumerate(layers)))
    return max(0, min(same, limit, len(layers) - 1))


@torch.no_grad()
def run_prefix(model: Any, token_ids: Tensor, length: int) -> Tensor:  # [rows, width, hidden]
    """What the first `length` layers make of some tokens."""
    layers = layers_of(model)
    rest = list(layers[length:])
    held: list[Tensor] = []
    hook = layers[length - 1].register_forward_hook(
        lambda _module, _args, output: held.append(_first(output))
    )
    try:
        del layers[length:]
        model.base_model(input_ids=token_ids, use_cache=False)
    finally:
        hook.remove()
        layers.extend(rest)
    return held[0]


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def is_separable(model: Any, length: int) -> bool:
    """Whether the other layers, fed with what the first ones made, give what all of them give.

    Not so where a model scales or adds to what it is fed.
    """
    ids = torch.arange(1, 17, device=model.device)[None] % model.config.vocab_size
    with torch.no_grad():
        whole = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        prefix = run_prefix(model, ids, length)
        first = detach_prefix(model, length)
        parted = model.base_model(inputs_embeds=prefix, use_cache=False).last_hidden_state
        attach_prefix(model, first)
    return torch.allclose(whole, parted, rtol=_TOLERANCE, atol=_TOLERANCE)


class _Piece(NamedTuple):
    """Where the rows of one answer are."""

    path: Path
    length: int
    stop: int

    def read(self) -> NDArray[np.int16]:  # [rows, hidden]
        # Opened each time: a file that stays mapped holds a descriptor, and there are thousands.
        return np.array(np.load(self.path, mmap_mode="r")[self.stop - self.length : self.stop])


class PrefixStore:
    """The prefix's output for every answer, a file per shard, read piece by piece."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pieces: list[_Piece] = []

    def add(self, name: str, answers: Sequence[Answer], run: Callable[[Tensor], Tensor]) -> None:
        """Takes in a shard's answers, in the order in which `read` counts them.

        Args:
            name: of the shard; its file is written unless an earlier run has.
            answers: of the shard.
            run: from token ids, [rows, width], to the prefix's output, [rows, width, hidden].
        """
        path = self._folder / f"{name}.npy"
        lengths = [len(answer.prompt_ids) + len(answer.token_ids) - 1 for answer in answers]
        if not path.is_file() or len(np.load(path, mmap_mode="r")) != sum(lengths):
            outputs = np.concatenate(_outputs([_text(answer) for answer in answers], run))
            write_whole(path, lambda partial: _save(partial, outputs))
        stops = np.cumsum(lengths).tolist()
        self._pieces += [_Piece(path, n, stop) for n, stop in zip(lengths, stops, strict=True)]

    def read(self, indices: Sequence[int], width: int) -> Tensor:  # [rows, width, hidden]
        """Some answers' rows, padded on the right with zeros."""
        pieces = [self._pieces[index].read() for index in indices]
        rows = torch.zeros((len(indices), width, pieces[0].shape[1]), dtype=torch.bfloat16)
        for row, piece in zip(rows, pieces, strict=True):
            row[: len(piece)] = torch.from_numpy(piece).view(torch.bfloat16)
        return rows


def _text(answer: Answer) -> Tensor:  # [width]
    text = np.concatenate((answer.prompt_ids, answer.token_ids))[:-1]
    return torch.from_numpy(text.astype(np.int64))


def _outputs(texts: Sequence[Tensor], run: Callable[[Tensor], Tensor]) -> list[NDArray[np.int16]]:
    """The prefix's output for each text, [width, hidden]; like lengths run together."""
    outputs: list[NDArray[np.int16]] = [np.empty(0, np.int16)] * len(texts)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    while order:
        num_rows = max(1, _TOKENS_AT_ONCE // max(1, len(texts[order[-1]])))
        part, order = order[-num_rows:], order[:-num_rows]
        # Padding on the right: what comes before it does not see it.
        packed = _pack(run(pad_sequence([texts[i] for i in part], batch_first=True)))
        for row, i in zip(packed, part, strict=True):
            outputs[i] = row[: len(texts[i])]
    return outputs


def _pack(hidden: Tensor) -> NDArray[np.int16]:
    """As bfloat16, which numpy does not know: half precision would overflow on some models."""
    return hidden.cpu().bfloat16().contiguous().view(torch.int16).numpy()


def _save(path: Path, array: NDArray[np.int16]) -> None:
    with path.open("wb") as file:
        np.save(file, array)
