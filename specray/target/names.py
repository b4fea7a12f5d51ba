"""Where vLLM finds our plug-ins; kept apart so that the builder needs no vLLM."""

SCHEDULER_CLS = "specray.target.scheduler.SpeculativeScheduler"
WORKER_CLS = "specray.target.worker.SpecrayWorker"
PROPOSER_CLS = "specray.target.proposer.NoProposer"

HARDWARE_KEY = "specray_hardware"
"""Our entry in vLLM's `additional_config`: what the config file calls the hardware, or `auto`."""

ROUTER_ARG = "specray_router"
"""Key of `vllm_xargs` in which a router names itself, so that the target knows its stream."""

ANY_ROUTER = "*"
"""In its place, of a request that came through none: the target chooses a router."""

REQUEST_ARG = "specray_request_id"
"""Key of `vllm_xargs` in which a router passes on the request's id, for logs and traces."""

TRACE_ARG = "specray_traceparent"
"""Key of `vllm_xargs` in which a router passes on its span."""

TENANT_ARG = "specray_tenant"
"""Key of `vllm_xargs` in which a router says whom a request is for."""

DEPTH_ARG = "num_speculative_tokens"
"""Key of `vllm_xargs` in which a request caps its own depth."""
