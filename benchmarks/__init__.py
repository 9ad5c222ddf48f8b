"""Benchmarks of ddptrace itself: what it costs, and how often it is right. `python -m benchmarks --help`."""
