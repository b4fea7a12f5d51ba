"""The data plane of a router: every target's sessions, shared out over every draft.

`switch` does the sharing; a target with streams to drafts of its own has one too.
"""
