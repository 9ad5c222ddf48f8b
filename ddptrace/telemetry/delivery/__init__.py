"""Brings spans and metrics to their destinations, from the process that reads a run: never from the one that trains.

In: a run that grows or the `Result` of a finished one (`exports.py`), and the destinations that a user asked for
(`targets.py`). Out: requests to collectors, lines in a file or on the terminal, and counts of what each
destination accepted, refused or never got.

Whatever is dropped here is counted and reported; what was not delivered is still in the run directory.

exports     what is sent: a run while it grows, or all of a finished one
targets     where it goes: the destinations of the command line, or of the `OTEL_*` variables
delivery    one destination: keeps each batch until it is accepted or its time is up, and counts
reports     the sentences about what was delivered, what was not, and what is missing
otlp        a collector that takes OTLP
channel     one signal's connection to a collector; `otlp_grpc` and `otlp_http` are the two kinds of it
otlp_json   a file of OTLP in JSON
"""
