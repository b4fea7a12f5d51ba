"""What transformers raises where a model's files are not there, or it can make nothing of them."""

from huggingface_hub.errors import StrictDataclassError

UNREADABLE = (OSError, ValueError, StrictDataclassError, ZeroDivisionError)  # by no heads

UNMAKEABLE = (*UNREADABLE, ImportError, AttributeError, KeyError, TypeError, RuntimeError)
"""Where a model is made of a config that could be read, also what its code fails by."""
