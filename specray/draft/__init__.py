"""The draft: sessions that follow requests, proposers that guess on, and the service around them.

`DraftService` owns the one thread on which a `Proposer` runs. Proposers: `PromptLookup` (copies
from the request itself), `NgramProposer` (a table of what the target usually says),
`ModelProposer` (a small causal language model) and `HybridProposer` (the first and one of the
others, each where it gets further; or the first two at once and the model ahead of them).
"""
