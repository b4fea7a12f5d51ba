"""The mathematics of speculative sampling: draft distributions, verification and its audit."""
