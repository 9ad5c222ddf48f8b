"""Exports a training from a process beside it, as the `OTEL_*` variables ask.

In: the run directory, as the training writes it, and the word that the training has left its trace. Out: telemetry at
its destinations, `export.log` in the run directory, and one sentence to the training about what was not delivered.

`companion.py` has both ends of their socket: it starts the process from the training, and hears from the training in
the process. `process.py` is the entry point of the process, `work.py` what it does.
"""
