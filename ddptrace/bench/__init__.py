"""Benchmarks of data-parallel training and of ddptrace itself, on the user's own machine."""
