"""Exports a training from a process beside it, as the `OTEL_*` variables ask.

In: the run directory, as the training writes it, and the word that the training has left its trace. Out: telemetry at
its destinations, `export.log` in the run directory, and one sentence to the training about what was not delivered.

`companion.py` runs in the training and starts the process; `process.py` is its entry point, `training.py` its end of
their socket, `work.py` what it does.
"""
