"""Everything specray raises, split by what the caller can do about it."""


class SpecrayError(Exception):
    """Base of every error specray raises itself."""


class InvalidConfigError(SpecrayError):
    """Mend the configuration: the message names the field, the value and the remedy."""


class ProtocolError(SpecrayError):
    """The peer sent something the speculation protocol does not allow; drop its message."""


class SessionRejectedError(SpecrayError):
    """The draft can't hold this session (too long, or no memory); decode it without a draft."""


class StreamClosedError(SpecrayError):
    """A speculation stream ended; reopen it, or use another replica."""


class StartupError(SpecrayError):
    """A part of the service did not come up; the message says which and where its log is."""
