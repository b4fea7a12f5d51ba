"""The n-gram model's file, and who answers from it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

from specray.errors import InvalidConfigError
from specray.models.ngrams import (
    NGRAM_FILE,
    NgramModel,
    NgramOrder,
    context_keys,
    load_ngrams,
)

NGRAMS = {
    (0,): {1: 0.6, 2: 0.2, 0: 0.1},
    (1,): {2: 0.9},
    (2,): {0: 0.5, 2: 0.3},
    (2, 1): {1: 0.5, 0: 0.25},  # behind 1, 2: the latest first
}


def write_ngrams(folder: Path, known: dict[tuple[int, ...], dict[int, float]]) -> Path:
    tensors = {}
    for size in sorted({len(context) for context in known}):
        chosen = {context: row for context, row in known.items() if len(context) == size}
        keys = context_keys(np.array(list(chosen)))
        rows = [list(chosen.values())[i] for i in np.argsort(keys)]
        arrays = {
            "keys": np.sort(keys),
            "starts": np.cumsum([0, *map(len, rows)]).astype(np.int32),
            "token_ids": np.array([t for row in rows for t in row], np.uint16),
            "shares": np.array([p for row in rows for p in row.values()], np.float16),
        }
        tensors |= {f"{size}.{name}": torch.from_numpy(array) for name, array in arrays.items()}
    save_file(tensors, folder / NGRAM_FILE)
    return folder


@pytest.fixture
def ngrams(tmp_path: Path) -> NgramModel:
    loaded = load_ngrams(write_ngrams(tmp_path, NGRAMS))
    assert loaded is not None
    return loaded


def test_the_longest_known_context_answers(ngrams: NgramModel) -> None:
    for text, context in (((0,), (0,)), ((2, 0), (0,)), ((1, 2), (2, 1)), ((0, 2), (2,))):
        opinion = ngrams.opinion(text)
        assert opinion is not None
        told = dict(zip(opinion.token_ids.tolist(), opinion.probabilities.tolist(), strict=True))
        assert told == pytest.approx(NGRAMS[context], rel=1e-3)
    assert ngrams.opinion((1, 7)) is None
    assert ngrams.opinion(()) is None


def test_a_folder_without_ngrams_has_none(tmp_path: Path) -> None:
    assert load_ngrams(tmp_path) is None


def test_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / NGRAM_FILE).write_bytes(b"short")
    with pytest.raises(InvalidConfigError, match="is broken"):
        load_ngrams(tmp_path)
    save_file({"1.keys": torch.zeros(1, dtype=torch.int64)}, tmp_path / NGRAM_FILE)
    with pytest.raises(InvalidConfigError, match=r"is broken \('1.starts'\)"):
        load_ngrams(tmp_path)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=3, max_size=3), min_size=1))
def test_the_likeliest_is_the_first_of_the_opinion(contexts: list[list[int]]) -> None:
    """Whatever the ids; each text's last two tokens are known, and its last one of every other."""
    pairs = [np.array(text[:0:-1]) for text in contexts]  # the latest first
    model = NgramModel([table([pair[:1] for pair in pairs[::2]]), table(pairs)])
    for text in contexts:
        opinion, likeliest = model.opinion(text), model.likeliest(text)
        assert opinion is not None
        assert likeliest == (opinion.token_ids[0], opinion.probabilities[0])
        assert len(opinion.token_ids) == 2  # of two tokens of context
    assert model.likeliest(()) is None


def table(contexts: Sequence[np.ndarray]) -> NgramOrder:
    """Two tokens behind each context: its place and the next."""
    keys = np.unique(context_keys(np.array(contexts)))
    size = len(contexts[0])
    starts = np.arange(0, size * len(keys) + 1, size, dtype=np.int32)
    token_ids = np.arange(size * len(keys), dtype=np.int32)
    return NgramOrder(keys, starts, token_ids, np.full(len(token_ids), 0.25, np.float16))


def test_a_context_that_nothing_follows_has_no_likeliest() -> None:
    nothing = np.zeros(0)
    order = NgramOrder(
        context_keys(np.array([[5]])),
        np.zeros(2, np.int32),
        nothing.astype(np.int32),
        nothing.astype(np.float16),
    )
    assert NgramModel([order]).likeliest([5]) is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("starts", np.zeros(1, np.int32)),
        ("starts", np.array([0, 9, 1, 1], np.int32)),
        ("token_ids", np.zeros(1, np.uint16)),
        ("shares", np.full(6, np.nan, np.float16)),
        ("shares", np.full(6, 2.0, np.float16)),
    ],
)
def test_tables_that_a_look_up_would_leave_are_refused(
    tmp_path: Path, name: str, wrong: np.ndarray
) -> None:
    write_ngrams(tmp_path, {context: row for context, row in NGRAMS.items() if len(context) == 1})
    tensors = load_file(tmp_path / NGRAM_FILE) | {f"1.{name}": wrong}
    save_numpy(tensors, tmp_path / NGRAM_FILE)
    with pytest.raises(InvalidConfigError, match="is broken"):
        load_ngrams(tmp_path)


def test_a_table_of_nothing_is_refused(tmp_path: Path) -> None:
    save_file({"other": torch.zeros(1)}, tmp_path / NGRAM_FILE)
    with pytest.raises(InvalidConfigError, match="no contexts"):
        load_ngrams(tmp_path)


def test_a_table_that_is_written_anew_while_it_serves_stays_what_it_was(tmp_path: Path) -> None:
    loaded = load_ngrams(write_ngrams(tmp_path, NGRAMS))
    (tmp_path / NGRAM_FILE).write_bytes(b"")

    assert loaded is not None
    assert loaded.likeliest((1,)) == (2, pytest.approx(0.9, rel=1e-3))
