from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SamplingSettings(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("session_id", "token_ids", "num_prompt_tokens", "sampling", "depth")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    sampling: SamplingSettings
    depth: int
    def __init__(self, session_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingSettings, _Mapping]] = ..., depth: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session_id", "position", "token_ids", "depth", "sent_at_ns")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_NS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    depth: int
    sent_at_ns: int
    def __init__(self, session_id: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., depth: _Optional[int] = ..., sent_at_ns: _Optional[int] = ...) -> None: ...

class SessionFrame(_message.Message):
    __slots__ = ("opens", "commits", "closes")
    OPENS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    opens: _containers.RepeatedCompositeFieldContainer[OpenSession]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    closes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, opens: _Optional[_Iterable[_Union[OpenSession, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., closes: _Optional[_Iterable[int]] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("session_id", "position", "last_token_id", "token_ids", "source", "support", "support_token_ids", "support_probabilities", "commit_sent_at_ns", "draft_time_us", "covers_outcomes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_SENT_AT_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    COVERS_OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    position: int
    last_token_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    source: str
    support: int
    support_token_ids: bytes
    support_probabilities: bytes
    commit_sent_at_ns: int
    draft_time_us: int
    covers_outcomes: bool
    def __init__(self, session_id: _Optional[int] = ..., position: _Optional[int] = ..., last_token_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ..., support: _Optional[int] = ..., support_token_ids: _Optional[bytes] = ..., support_probabilities: _Optional[bytes] = ..., commit_sent_at_ns: _Optional[int] = ..., draft_time_us: _Optional[int] = ..., covers_outcomes: _Optional[bool] = ...) -> None: ...

class ProposalFrame(_message.Message):
    __slots__ = ("proposals", "lost")
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    lost: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., lost: _Optional[_Iterable[int]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Policy(_message.Message):
    __slots__ = ("is_enabled", "max_depth", "max_wait_ms")
    IS_ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    is_enabled: bool
    max_depth: int
    max_wait_ms: float
    def __init__(self, is_enabled: _Optional[bool] = ..., max_depth: _Optional[int] = ..., max_wait_ms: _Optional[float] = ...) -> None: ...

class SourceStats(_message.Message):
    __slots__ = ("source", "num_proposed", "num_accepted", "proposed_per_position", "accepted_per_position")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROPOSED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROPOSED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PER_POSITION_FIELD_NUMBER: _ClassVar[int]
    source: str
    num_proposed: int
    num_accepted: int
    proposed_per_position: _containers.RepeatedScalarFieldContainer[int]
    accepted_per_position: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[str] = ..., num_proposed: _Optional[int] = ..., num_accepted: _Optional[int] = ..., proposed_per_position: _Optional[_Iterable[int]] = ..., accepted_per_position: _Optional[_Iterable[int]] = ...) -> None: ...

class Durations(_message.Message):
    __slots__ = ("count", "sum_s", "buckets")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_S_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    count: int
    sum_s: float
    buckets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, count: _Optional[int] = ..., sum_s: _Optional[float] = ..., buckets: _Optional[_Iterable[int]] = ...) -> None: ...

class TargetStats(_message.Message):
    __slots__ = ("num_steps", "num_request_steps", "num_committed", "sources", "num_proposals_used", "num_proposals_late", "num_proposals_stale", "num_proposals_invalid", "num_misses", "num_open_sessions", "num_routers", "step_time", "wait_time", "draft_time", "relay_time")
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUEST_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROPOSALS_USED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROPOSALS_LATE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROPOSALS_STALE_FIELD_NUMBER: _ClassVar[int]
    NUM_PROPOSALS_INVALID_FIELD_NUMBER: _ClassVar[int]
    NUM_MISSES_FIELD_NUMBER: _ClassVar[int]
    NUM_OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUTERS_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIME_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TIME_FIELD_NUMBER: _ClassVar[int]
    RELAY_TIME_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    num_request_steps: int
    num_committed: int
    sources: _containers.RepeatedCompositeFieldContainer[SourceStats]
    num_proposals_used: int
    num_proposals_late: int
    num_proposals_stale: int
    num_proposals_invalid: int
    num_misses: int
    num_open_sessions: int
    num_routers: int
    step_time: Durations
    wait_time: Durations
    draft_time: Durations
    relay_time: Durations
    def __init__(self, num_steps: _Optional[int] = ..., num_request_steps: _Optional[int] = ..., num_committed: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceStats, _Mapping]]] = ..., num_proposals_used: _Optional[int] = ..., num_proposals_late: _Optional[int] = ..., num_proposals_stale: _Optional[int] = ..., num_proposals_invalid: _Optional[int] = ..., num_misses: _Optional[int] = ..., num_open_sessions: _Optional[int] = ..., num_routers: _Optional[int] = ..., step_time: _Optional[_Union[Durations, _Mapping]] = ..., wait_time: _Optional[_Union[Durations, _Mapping]] = ..., draft_time: _Optional[_Union[Durations, _Mapping]] = ..., relay_time: _Optional[_Union[Durations, _Mapping]] = ...) -> None: ...
