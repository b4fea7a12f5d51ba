"""What transformers raises where a model's files are not there, or it can make nothing of them."""

from huggingface_hub.errors import StrictDataclassError

UNREADABLE = (OSError, ValueError, StrictDataclassError)
