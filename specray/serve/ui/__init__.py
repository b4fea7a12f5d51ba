"""A page for people at `/ui`: who is there, how fast it goes, where tokens come from.

Nothing runs for it while nobody looks. It has no authentication; `router.ui: false` leaves it out.
"""
