"""Every source of proposals, for the tiny model: made and run as in a draft's replica."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from specray.config import DraftConfig, ModelDraftConfig, NgramDraftConfig
from specray.draft.factory import make_proposer
from specray.draft.proposer import Proposer
from specray.draft.service import DraftService
from specray.draft.trimmed_head import DRAFT_FILE
from specray.models.vocabulary import SharedTokens, Vocabulary, shared_tokens
from specray.types import Source
from tests.models.test_ngrams import write_ngrams
from tests.target.tiny_model import VOCAB_SIZE, TinyModel
from tests.tokenizers_util import byte_level


class Kind(NamedTuple):
    """A kind of draft."""

    method: Literal["prompt_lookup", "ngram", "model", "hybrid"]
    sources: set[Source]  # what its proposals say they are from
    has_other_tokenizer: bool = False


KINDS = {
    "prompt_lookup": Kind("prompt_lookup", {"prompt_lookup"}),
    "ngram": Kind("ngram", {"prompt_lookup", "ngram"}),
    "model": Kind("model", {"model"}),
    "other tokenizer": Kind("model", {"model"}, has_other_tokenizer=True),
    "hybrid": Kind("hybrid", {"prompt_lookup", "model"}),
    "hybrid, n-grams": Kind("hybrid", {"prompt_lookup", "ngram", "model"}),
    "hybrid, other tokenizer": Kind("hybrid", {"prompt_lookup", "model"}, has_other_tokenizer=True),
}

DISTURBED = pytest.mark.parametrize(
    ("name", "disturbs_commits"),
    [("model", False), ("hybrid", False), ("model", True)],
    ids=["model", "hybrid", "commits too"],
)

_NOISE = 0.1  # in the weights of the draft's head, where the target's are spread by 0.25
_NUM_FOLLOWERS = 8  # that n-grams know of


class Sources:
    """Files of a draft model, of the same with another tokenizer, and of n-grams."""

    def __init__(self, tiny_folder: Path, folder: Path) -> None:
        self._folder = folder
        torch.manual_seed(0)
        model = LlamaForCausalLM.from_pretrained(tiny_folder)
        head = model.lm_head.weight.data
        head += _NOISE * torch.randn_like(head)
        model.save_pretrained(folder / "draft")
        # Few pairs, so that few of the target's tokens are spelled out: what comes after one looks
        # random to the draft, which is then right by chance.
        self._target = byte_level(folder / "target", _pairs("abcd"), [], seed=23)
        self._other = byte_level(folder / "other", _pairs("UVWXYZ"), [], seed=2)
        both = shared_tokens(Vocabulary(self._target), Vocabulary(self._other))
        is_used = both.target_ids < VOCAB_SIZE
        self._shared = SharedTokens(both.target_ids[is_used], both.draft_ids[is_used])
        _write_other(model, self._shared, Path(self._other))

    @property
    def missing(self) -> list[int]:
        """The target's tokens that the draft with another tokenizer does not have."""
        return sorted(set(range(VOCAB_SIZE)).difference(self._shared.target_ids.tolist()))

    def draft(self) -> TinyModel:
        """The draft model with the target's tokenizer."""
        return TinyModel(self._folder / "draft")

    def proposer(self, kind: Kind, follows: NDArray[np.float64]) -> Proposer:
        """What a replica of that kind runs.

        Args:
            kind: which.
            follows: [vocab, vocab], for n-grams: how often one token follows another.
        """
        shares = 0.9 * follows / np.maximum(follows.sum(axis=1, keepdims=True), 1e-9)
        order = np.argsort(-shares, axis=1)[:, :_NUM_FOLLOWERS].tolist()
        known = {
            (last,): {token_id: shares[last, token_id] for token_id in followers}
            for last, followers in enumerate(order)
            if shares[last].any()
        }
        write_ngrams(self._folder, known)
        return make_proposer(self._config(kind))

    def _config(self, kind: Kind) -> DraftConfig:
        model = ModelDraftConfig(model=str(self._folder / "draft"), device="cpu")
        if kind.has_other_tokenizer:
            changes = {"model": self._other, "target_tokenizer": self._target}
            model = model.model_copy(update=changes)
        ngram = NgramDraftConfig(model=str(self._folder))
        ngrams = {"ngram": ngram} if "ngram" in kind.sources else {}
        return DraftConfig(method=kind.method, model=model, **ngrams)


@contextmanager
def served(proposer: Proposer) -> Iterator[DraftService]:
    """The service of a draft's replica around a proposer."""
    service = DraftService(proposer)
    service.warm_up()
    service.start()
    try:
        yield service
        service.check_health()
    finally:
        service.close()


def followers(texts: Sequence[Sequence[int]]) -> NDArray[np.float64]:  # [vocab, vocab]
    """How often one token follows another."""
    counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE))
    for text in texts:
        np.add.at(counts, (text[:-1], text[1:]), 1.0)
    return counts


def _write_other(model: LlamaForCausalLM, shared: SharedTokens, folder: Path) -> None:
    """The same function of tokens that have other ids, and some of which are spelled out."""
    vocab_size = len(Vocabulary(str(folder)).by_spelling())
    config = LlamaConfig(**{**model.config.to_dict(), "vocab_size": vocab_size})
    other = LlamaForCausalLM(config)
    other.load_state_dict(
        {k: v for k, v in model.state_dict().items() if v.shape[0] != VOCAB_SIZE}, strict=False
    )
    ours, theirs = (torch.from_numpy(ids).long() for ids in shared)
    other.lm_head.weight.data[theirs] = model.lm_head.weight.data[ours]
    embedding = other.get_input_embeddings().weight.data.normal_()
    embedding[theirs] = model.get_input_embeddings().weight.data[ours]
    other.save_pretrained(folder)
    # The target's tokenizer has more tokens than the tiny model.
    (folder / DRAFT_FILE).write_text(json.dumps({"head_token_ids": theirs.tolist()}))


def _pairs(letters: str) -> list[str]:
    return ["".join(pair) for pair in product(letters, repeat=2)]
