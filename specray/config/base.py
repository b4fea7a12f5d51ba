"""What all settings share, and their bounds."""

from pydantic import BaseModel, ConfigDict

MAX_DEPTH = 64  # far beyond what pays; vLLM's rejection sampler takes 128
MAX_SUPPORT = 256  # of a shipped distribution; the mass beyond is next to nothing
MAX_FAN_OUT = 80  # branches of any session, and so of all on average: targets hold no more
MAX_WAIT_MS = 10_000.0  # a step held back for longer is an outage


class Settings(BaseModel):
    """Frozen; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)
