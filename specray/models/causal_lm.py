"""A causal LM as transformers runs it, where there is nothing else to run it with."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from specray.errors import InvalidConfigError
from specray.models import cuda
from specray.models.unreadable import UNREADABLE


def load_causal_lm(path: str) -> Any:
    """The model, ready to infer: bfloat16 on a GPU if there is one, else float32 on the CPU.

    Raises:
        InvalidConfigError: it can't be loaded.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    cuda.prepare(device)
    try:
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except UNREADABLE as error:
        raise InvalidConfigError(f"model {path} can't be loaded: {error}") from error
    return model.eval().to(device)
