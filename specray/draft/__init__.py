"""The draft: sessions that follow requests, proposers that guess on, and the service around them.

`DraftService` owns the one thread on which a `Proposer` runs. Proposers: `PromptLookup` (copies
from the request itself), `ModelProposer` (a small causal language model) and `HybridProposer`
(both, each where it gets further).
"""
