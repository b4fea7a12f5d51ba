"""The data plane of a router: every target's sessions, shared out over every draft."""
