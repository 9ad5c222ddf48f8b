"""Steps and phases: where a step begins and ends, what the training thread does, which steps are recorded.

In: calls of modules, backwards, optimizers, data loaders. Out: PHASE and STEP records, and calls of whoever waits for a
step or a backward.
"""
