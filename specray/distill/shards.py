"""Files of the target's answers: written whole, read an answer at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from specray.distill.work import WorkFolder, write_whole

_ZIP_HEADER = 30  # bytes; the last four are the lengths of the name and the extra field behind it


class Answer(NamedTuple):
    """One answer. Greedy or sampled at temperature 1."""

    prompt: int  # index among the split's prompts
    is_greedy: bool
    prompt_ids: NDArray[np.int32]  # [prompt tokens]
    token_ids: NDArray[np.int32]  # [tokens]
    top_ids: NDArray[np.int32]  # [tokens, top_k]
    top_logprobs: NDArray[np.float16]  # [tokens, top_k]

    def first(self, length: int) -> "Answer":
        """The answer up to some length, in tokens."""
        return self._replace(
            token_ids=self.token_ids[:length],
            top_ids=self.top_ids[:length],
            top_logprobs=self.top_logprobs[:length],
        )


class Answers(Protocol):
    """Answers in memory, or in files that are read whenever one is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Answer: ...
    def __iter__(self) -> Iterator[Answer]: ...


class Shard:
    """A file of answers; in memory is only where each of them lies."""

    def __init__(self, path: Path) -> None:
        """Finds the answers in their file, which must stay as it is."""
        self.path = path
        with np.load(path) as arrays:
            self._prompts = arrays["prompt"]
            self._is_greedy = arrays["is_greedy"]
            self.lengths: NDArray[np.int32] = arrays["lengths"]  # [answers], in tokens
            self._stops = np.cumsum(self.lengths)
            self._prompt_lengths = arrays["prompt_lengths"]
            self._prompt_stops = np.cumsum(self._prompt_lengths)
        self._arrays = dict(_find_arrays(path))

    def __len__(self) -> int:
        """How many answers there are."""
        return len(self.lengths)

    def __getitem__(self, row: int) -> Answer:
        """Reads one answer."""
        tokens = int(self._stops[row]), int(self.lengths[row])
        prompt = int(self._prompt_stops[row]), int(self._prompt_lengths[row])
        with self.path.open("rb") as file:
            return Answer(
                int(self._prompts[row]),
                bool(self._is_greedy[row]),
                self._arrays["prompt_ids"].read(file, *prompt).astype(np.int32),
                self._arrays["token_ids"].read(file, *tokens).astype(np.int32),
                self._arrays["top_ids"].read(file, *tokens).astype(np.int32),
                self._arrays["top_logprobs"].read(file, *tokens),
            )


class _Array(NamedTuple):
    """Where an array lies in a file."""

    start: int  # bytes
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]

    def read(self, file: IO[bytes], stop: int, count: int) -> NDArray[Any]:
        """The `count` rows before row `stop`."""
        width = int(np.prod(self.row_shape))
        file.seek(self.start + (stop - count) * width * self.dtype.itemsize)
        return np.fromfile(file, self.dtype, count * width).reshape(count, *self.row_shape)


def _find_arrays(path: Path) -> Iterator[tuple[str, _Array]]:
    """The arrays of a file by `np.savez`, which stores them as they are in memory."""
    formats: Any = np.lib.format  # has no types
    with ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            file.seek(entry.header_offset + _ZIP_HEADER - 4)
            name_length, extra_length = np.fromfile(file, "<u2", 2).tolist()
            file.seek(name_length + extra_length, 1)
            formats.read_magic(file)
            shape, _, dtype = formats.read_array_header_1_0(file)
            yield entry.filename.removesuffix(".npy"), _Array(file.tell(), dtype, shape[1:])


def find_shards(work: WorkFolder, split: str) -> list[Path]:
    """The files of answers of a split that are there, in order."""
    return sorted(work.answers.glob(f"{split}-*.npz"))


def load_shard(path: Path) -> Iterator[Answer]:
    """The answers of one file, one after the other."""
    shard = Shard(path)
    return (shard[row] for row in range(len(shard)))


def save_shard(path: Path, answers: Sequence[Answer]) -> None:
    """Writes a file of answers."""
    arrays: dict[str, Any] = {
        "prompt": np.array([a.prompt for a in answers], np.int32),
        "is_greedy": np.array([a.is_greedy for a in answers]),
        "prompt_lengths": np.array([len(a.prompt_ids) for a in answers], np.int32),
        "lengths": np.array([len(a.token_ids) for a in answers], np.int32),
        **{
            name: _narrow(np.concatenate([getattr(a, name) for a in answers]))
            for name in ("prompt_ids", "token_ids", "top_ids", "top_logprobs")
        },
    }

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, **arrays)

    write_whole(path, write)


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    """Ids below 65,536 in half the bytes."""
    fits = array.dtype == np.int32 and array.max(initial=0) < 1 << 16
    return array.astype(np.uint16) if fits else array
