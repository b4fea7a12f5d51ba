"""Disaggregated speculative decoding: draft replicas propose, vLLM targets verify, routers relay."""
