"""A cluster on a simulated clock: the service's own speculation, with modelled steps and drafts.

What decides (the target's `Speculation` with its planner, patience and proposal buffer, and the
router's session table) is the code that serves; what takes time (steps, drafting, the network) and
what the models would have said (how far a proposal agrees) are models of it.
"""
