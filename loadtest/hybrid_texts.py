"""The target's answers to some prompts, and what target and draft say at each token.

    python loadtest/hybrid_texts.py --folder build/hybrid
    python loadtest/hybrid_texts.py --folder build/hybrid --draft DRAFT --name NAME

`hybrid_prompts.jsonl` was written by hand after the first training, as people write: 20 prompts
each for chat, summarising and code. So was `held_out_prompts.jsonl`, after the fifth, whose draft
is shipped: nothing was chosen by these. The first call lets the bundled target answer them in
float32, greedy, at temperature 1 and at temperature 0.7 with top-p 0.9, and keeps the target's most
likely tokens of every position. A draft is asked about the same texts, in one pass per text. With
`--missing 0.1` it is asked as a draft of another tokenizer would be (`draft/translation.py`): a
tenth of its tokens are not shared, so it never says them and reads them in pieces. With `--int8`
its weights are those that a replica on a CPU has. All of it is kept in the folder, so that
`hybrid_acceptance.py` takes seconds.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from specray.distill.engines import GROUPED_ATTENTION, load_model, load_template
from specray.distill.generation import SampleRequest
from specray.distill.transformers_engine import TransformersGenerator
from specray.draft import int8
from specray.draft.trimmed_head import read_head_token_ids, trim_head
from specray.models.sources import resolve
from specray.types import SamplingSettings

TARGET = "bundled:smollm2-135m-instruct"
DRAFT = "bundled:smollm2-135m-instruct-draft"
PROMPTS = Path(__file__).parent / "held_out_prompts.jsonl"
MAX_TOKENS = 224
SETTINGS = {
    "greedy": SamplingSettings(),
    "T=1": SamplingSettings(1.0),
    "T=0.7": SamplingSettings(0.7, top_p=0.9),
}
_KEPT = 256  # tokens of each position whose probability is kept


class Text(NamedTuple):
    """One answer."""

    kind: str
    setting: str
    prompt_ids: list[int]
    token_ids: list[int]


class Says(NamedTuple):
    """What a model says of each token of all texts, one after the other, at temperature 1."""

    token_ids: NDArray[np.int32]  # [tokens, kept], most likely first
    logprobs: NDArray[np.float32]  # [tokens, kept]

    def part(self, start: int, stop: int) -> "Says":
        return Says(self.token_ids[start:stop], self.logprobs[start:stop])


def read_texts(folder: Path) -> list[Text]:
    return [Text(*row) for row in json.loads((folder / "texts.json").read_text())]


def read_says(folder: Path, name: str) -> Says:
    with np.load(folder / f"{name}.npz") as arrays:
        return Says(arrays["token_ids"], arrays["logprobs"].astype(np.float32))


def write_texts(folder: Path, file: Path) -> None:
    path = resolve(TARGET)
    template = load_template(path)
    prompts = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    rows, requests = [], []
    for setting, sampling in SETTINGS.items():
        for index, prompt in enumerate(prompts):
            ids = template.encode([{"role": "user", "content": prompt["prompt"]}])
            rows.append((prompt["kind"], setting, list(ids)))
            requests.append(
                SampleRequest(ids, 9000 + index, MAX_TOKENS, sampling.temperature, sampling.top_p)
            )
    model = load_model(path, "cpu", torch.float32, GROUPED_ATTENTION)
    completions = TransformersGenerator(model, template.end_ids).generate(requests, top_k=0)
    texts = [[*row, c.token_ids.tolist()] for row, c in zip(rows, completions, strict=True)]
    (folder / "texts.json").write_text(json.dumps(texts))


@torch.inference_mode()
def write_says(
    folder: Path, name: str, path: str, missing: float = 0.0, *, is_int8: bool = False
) -> None:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    head = read_head_token_ids(path, model.config.vocab_size, None)
    spellings = spell_without(path, missing)
    if head is not None:
        head = head[[len(spellings[i]) == 1 for i in head.tolist()]]
        trim_head(model, head)
    if is_int8:
        int8.quantize(model)
    parts = list(_say(model, head, read_texts(folder), spellings))
    np.savez(
        folder / f"{name}.npz",
        token_ids=np.concatenate([ids for ids, _ in parts]),
        logprobs=np.concatenate([logprobs for _, logprobs in parts]),
    )


def spell_without(path: str, missing: float) -> list[list[int]]:
    """How each token is read: as itself, or in pieces if it is one of those that are missing."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    rng = np.random.default_rng(0)
    special = set(tokenizer.all_special_ids)
    is_missing = [
        len(name) > 1 and i not in special and rng.random() < missing
        for i, name in enumerate(names)
    ]
    shared = {name: i for i, name in enumerate(names) if not is_missing[i]}
    return [[i] if not is_missing[i] else _pieces(name, shared) for i, name in enumerate(names)]


def _pieces(name: str, shared: dict[str, int]) -> list[int]:
    if not name:
        return []
    stop = next(stop for stop in range(len(name), 0, -1) if name[:stop] in shared)
    return [shared[name[:stop]], *_pieces(name[stop:], shared)]


def _say(
    model: Any, head: torch.Tensor | None, texts: list[Text], spellings: list[list[int]]
) -> Iterator[tuple[Any, Any]]:
    for text in texts:
        pieces = [spellings[i] for i in (*text.prompt_ids, *text.token_ids)]
        ends = np.cumsum([len(piece) for piece in pieces]) - 1
        ids = torch.tensor([[i for piece in pieces for i in piece]])
        states = model.base_model(ids).last_hidden_state[0]
        logits = model.get_output_embeddings()(states[ends[len(text.prompt_ids) - 1 : -1]])
        logprobs, columns = logits.log_softmax(-1).topk(_KEPT)
        said = columns if head is None else head[columns]
        yield said.numpy().astype(np.int32), logprobs.numpy().astype(np.float16)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--name", default="draft", help="of the draft's file in the folder")
    parser.add_argument("--missing", type=float, default=0.0, help="share of tokens not shared")
    parser.add_argument("--int8", action="store_true", help="the draft's weights as on a CPU")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.folder.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "texts.json").exists():
        write_texts(args.folder, args.prompts)
    if not (args.folder / "target.npz").exists():
        write_says(args.folder, "target", resolve(TARGET))
    write_says(args.folder, args.name, resolve(args.draft), args.missing, is_int8=args.int8)


if __name__ == "__main__":
    main()
