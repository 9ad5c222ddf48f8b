"""Experiments on data-parallel training, on the user's own machine. Those on ddptrace itself are in `benchmarks/`."""
