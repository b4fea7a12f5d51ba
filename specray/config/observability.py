"""What is written down, and where."""

from typing import Any

from pydantic import Field, field_validator

from specray.config.base import Settings

FILE_PREFIX = "file:"  # of `observability.traces`


class ObservabilityConfig(Settings):
    """What is written down about single requests; nothing unless asked for."""

    session_log: bool = Field(
        False, description="A log line for each request at its end, on target and draft."
    )
    traces: str | None = Field(
        None,
        description="Where spans go: `http://HOST:4318/v1/traces` of an OTLP collector, or "
        "`file:FOLDER`.",
    )
    trace_ratio: float = Field(
        1.0, gt=0, le=1, description="Share of requests traced, of those whose client does not say."
    )
    timeline: str | None = Field(
        None,
        description="Folder to which targets and drafts write what they do when, for `specray "
        "trace`. It grows without bound: for minutes, not for production.",
    )

    @field_validator("traces", mode="before")
    @classmethod
    def _check_traces(cls, value: Any) -> Any:
        if value is False:  # `off` in YAML
            return None
        is_known = isinstance(value, str) and value.startswith(("http://", "https://", FILE_PREFIX))
        if value is None or is_known:
            return value
        raise ValueError(
            f"{value!r} is neither an OTLP endpoint (http://HOST:4318/v1/traces) nor "
            f"{FILE_PREFIX}FOLDER nor off"
        )


class LogFileConfig(Settings):
    """A log file of a process that Serve does not know."""

    path: str
    is_json: bool
    level: str | int
