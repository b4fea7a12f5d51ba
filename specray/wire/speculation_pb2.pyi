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
    __slots__ = ("session_id", "token_ids", "num_prompt_tokens", "sampling", "depth", "request_id", "traceparent", "tenant", "target", "is_shareable")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    IS_SHAREABLE_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_prompt_tokens: int
    sampling: SamplingSettings
    depth: int
    request_id: str
    traceparent: str
    tenant: str
    target: str
    is_shareable: bool
    def __init__(self, session_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_prompt_tokens: _Optional[int] = ..., sampling: _Optional[_Union[SamplingSettings, _Mapping]] = ..., depth: _Optional[int] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., tenant: _Optional[str] = ..., target: _Optional[str] = ..., is_shareable: bool = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session_id", "position", "token_ids", "depth", "sent_at_ns", "accepted", "was_late", "is_unawaited")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_NS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    WAS_LATE_FIELD_NUMBER: _ClassVar[int]
    IS_UNAWAITED_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    depth: int
    sent_at_ns: int
    accepted: _containers.RepeatedCompositeFieldContainer[Accepted]
    was_late: bool
    is_unawaited: bool
    def __init__(self, session_id: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., depth: _Optional[int] = ..., sent_at_ns: _Optional[int] = ..., accepted: _Optional[_Iterable[_Union[Accepted, _Mapping]]] = ..., was_late: bool = ..., is_unawaited: bool = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("position", "num_tokens", "source")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    position: int
    num_tokens: int
    source: str
    def __init__(self, position: _Optional[int] = ..., num_tokens: _Optional[int] = ..., source: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("session_id", "position", "last_token_id", "token_ids", "source", "support", "support_token_ids", "support_probabilities", "commit_sent_at_ns", "draft_time_us", "covers_outcomes", "confidences")
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
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
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
    confidences: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, session_id: _Optional[int] = ..., position: _Optional[int] = ..., last_token_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ..., support: _Optional[int] = ..., support_token_ids: _Optional[bytes] = ..., support_probabilities: _Optional[bytes] = ..., commit_sent_at_ns: _Optional[int] = ..., draft_time_us: _Optional[int] = ..., covers_outcomes: bool = ..., confidences: _Optional[_Iterable[float]] = ...) -> None: ...

class ProposalFrame(_message.Message):
    __slots__ = ("proposals", "lost", "drafts")
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    lost: _containers.RepeatedScalarFieldContainer[int]
    drafts: Drafts
    def __init__(self, proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., lost: _Optional[_Iterable[int]] = ..., drafts: _Optional[_Union[Drafts, _Mapping]] = ...) -> None: ...

class Drafts(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Policy(_message.Message):
    __slots__ = ("is_enabled", "max_depth", "max_wait_ms", "depth_rule", "has_stop_gap")
    IS_ENABLED_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_RULE_FIELD_NUMBER: _ClassVar[int]
    HAS_STOP_GAP_FIELD_NUMBER: _ClassVar[int]
    is_enabled: bool
    max_depth: int
    max_wait_ms: float
    depth_rule: str
    has_stop_gap: bool
    def __init__(self, is_enabled: bool = ..., max_depth: _Optional[int] = ..., max_wait_ms: _Optional[float] = ..., depth_rule: _Optional[str] = ..., has_stop_gap: bool = ...) -> None: ...

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

class CalibrationStats(_message.Message):
    __slots__ = ("num_tokens", "num_accepted", "sum_predicted")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    SUM_PREDICTED_FIELD_NUMBER: _ClassVar[int]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_accepted: _containers.RepeatedScalarFieldContainer[int]
    sum_predicted: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, num_tokens: _Optional[_Iterable[int]] = ..., num_accepted: _Optional[_Iterable[int]] = ..., sum_predicted: _Optional[_Iterable[float]] = ...) -> None: ...

class RooflineStats(_message.Message):
    __slots__ = ("flops_per_byte", "ridge", "hardware")
    FLOPS_PER_BYTE_FIELD_NUMBER: _ClassVar[int]
    RIDGE_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    flops_per_byte: float
    ridge: float
    hardware: str
    def __init__(self, flops_per_byte: _Optional[float] = ..., ridge: _Optional[float] = ..., hardware: _Optional[str] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("num_frames", "num_bytes", "hop_time")
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOP_TIME_FIELD_NUMBER: _ClassVar[int]
    num_frames: int
    num_bytes: int
    hop_time: Durations
    def __init__(self, num_frames: _Optional[int] = ..., num_bytes: _Optional[int] = ..., hop_time: _Optional[_Union[Durations, _Mapping]] = ...) -> None: ...

class DirectStats(_message.Message):
    __slots__ = ("connected_drafts", "open_sessions", "num_homeless", "fallbacks", "to_drafts", "to_targets")
    class OpenSessionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FallbacksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CONNECTED_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_HOMELESS_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    TO_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    TO_TARGETS_FIELD_NUMBER: _ClassVar[int]
    connected_drafts: _containers.RepeatedScalarFieldContainer[str]
    open_sessions: _containers.ScalarMap[str, int]
    num_homeless: int
    fallbacks: _containers.ScalarMap[str, int]
    to_drafts: Traffic
    to_targets: Traffic
    def __init__(self, connected_drafts: _Optional[_Iterable[str]] = ..., open_sessions: _Optional[_Mapping[str, int]] = ..., num_homeless: _Optional[int] = ..., fallbacks: _Optional[_Mapping[str, int]] = ..., to_drafts: _Optional[_Union[Traffic, _Mapping]] = ..., to_targets: _Optional[_Union[Traffic, _Mapping]] = ...) -> None: ...

class TargetStats(_message.Message):
    __slots__ = ("num_steps", "num_request_steps", "num_committed", "sources", "num_proposals_used", "num_proposals_late", "num_proposals_stale", "num_proposals_invalid", "num_misses", "num_open_sessions", "num_routers", "step_time", "wait_time", "draft_time", "relay_time", "num_hits", "num_late", "num_absent", "turnaround_time", "calibration", "roofline", "step_time_error", "direct", "load", "prospect")
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
    NUM_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_LATE_FIELD_NUMBER: _ClassVar[int]
    NUM_ABSENT_FIELD_NUMBER: _ClassVar[int]
    TURNAROUND_TIME_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    ROOFLINE_FIELD_NUMBER: _ClassVar[int]
    STEP_TIME_ERROR_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PROSPECT_FIELD_NUMBER: _ClassVar[int]
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
    num_hits: int
    num_late: int
    num_absent: int
    turnaround_time: Durations
    calibration: CalibrationStats
    roofline: RooflineStats
    step_time_error: float
    direct: DirectStats
    load: EngineLoad
    prospect: Prospect
    def __init__(self, num_steps: _Optional[int] = ..., num_request_steps: _Optional[int] = ..., num_committed: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[SourceStats, _Mapping]]] = ..., num_proposals_used: _Optional[int] = ..., num_proposals_late: _Optional[int] = ..., num_proposals_stale: _Optional[int] = ..., num_proposals_invalid: _Optional[int] = ..., num_misses: _Optional[int] = ..., num_open_sessions: _Optional[int] = ..., num_routers: _Optional[int] = ..., step_time: _Optional[_Union[Durations, _Mapping]] = ..., wait_time: _Optional[_Union[Durations, _Mapping]] = ..., draft_time: _Optional[_Union[Durations, _Mapping]] = ..., relay_time: _Optional[_Union[Durations, _Mapping]] = ..., num_hits: _Optional[int] = ..., num_late: _Optional[int] = ..., num_absent: _Optional[int] = ..., turnaround_time: _Optional[_Union[Durations, _Mapping]] = ..., calibration: _Optional[_Union[CalibrationStats, _Mapping]] = ..., roofline: _Optional[_Union[RooflineStats, _Mapping]] = ..., step_time_error: _Optional[float] = ..., direct: _Optional[_Union[DirectStats, _Mapping]] = ..., load: _Optional[_Union[EngineLoad, _Mapping]] = ..., prospect: _Optional[_Union[Prospect, _Mapping]] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("num_running", "num_waiting", "max_running", "kv_usage", "num_arrived", "first_token_time", "decode_s", "num_decoded", "busy_s")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_USAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_ARRIVED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_TIME_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODED_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    max_running: int
    kv_usage: float
    num_arrived: int
    first_token_time: Durations
    decode_s: float
    num_decoded: int
    busy_s: float
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., max_running: _Optional[int] = ..., kv_usage: _Optional[float] = ..., num_arrived: _Optional[int] = ..., first_token_time: _Optional[_Union[Durations, _Mapping]] = ..., decode_s: _Optional[float] = ..., num_decoded: _Optional[int] = ..., busy_s: _Optional[float] = ...) -> None: ...

class Prospect(_message.Message):
    __slots__ = ("gain", "step_s")
    GAIN_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    gain: float
    step_s: float
    def __init__(self, gain: _Optional[float] = ..., step_s: _Optional[float] = ...) -> None: ...
