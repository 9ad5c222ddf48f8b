"""Turns the records of a run into OpenTelemetry spans and metrics, never on the thread that trains.

In: a `RankBatch` of a run that grows (`ddptrace/live`), or the `Result` of a finished one. Out: spans and metric
points, at a `TracerProvider`, a collector, Prometheus, a file or the terminal.

Both come in as `rows.py`. `spans` and `metrics` make OpenTelemetry's data of these rows, `delivery` brings the data to
its destinations, and `companion` is the process that does all this beside a training.

This is the only room that imports opentelemetry. `environment.py` and `companion/companion.py` do not, and neither does
this file: a training that exports nothing must not pay for it.
"""
