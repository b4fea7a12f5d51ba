"""Sizes that also those need who compute what a draft takes, apart from all that needs PyTorch."""

GPU_PREFILL_TOKENS = 512
"""Of one pass of a prefill on a GPU, where 64 take 7.5 ms as well: what launching them takes.

Measured with a model of Llama 3.2 1B's shape (`loadtest/results/draft-speed-h200-d15f021.json`).
"""
CPU_PREFILL_TOKENS = 64
"""Likewise on a CPU; what it takes is what other sessions wait."""
CACHE_GROWTH = 1.25
"""A session whose keys and values grow is given this much, so that it is seldom copied."""
