"""The target role: plug-ins that let vLLM verify proposals which arrive from outside.

`scheduler` puts proposals into vLLM's steps and emits commits, `speculation` chooses them and
learns, `worker` hands their distributions to vLLM's rejection sampler, `buffer` keeps what has
arrived, `service` is the stream to the routers and `direct` those to drafts. What drafts inside the
target is `stop_gap`, and vLLM's own drafter: `engine_drafter` runs it in the worker,
`engine_drafts` decides how deep, `drafter_context` knows what it has missed. `trust` judges whether
what drafts ship can be believed. All of this runs in vLLM's own processes: the scheduler's side on
the engine's thread, the streams on a thread of their own.
"""
