"""Traces that torch.profiler wrote without ddptrace: read as if a rank had recorded them.

In: the trace files of one rank. Out: its `RankRun`.

trace     threads and ranges of one file           calls    collectives on a device, of Gloo, and those launched only
identity  which collective it was                  ddp      which of them carry gradients
window    one file, its steps and phases           rank     all files of a rank
"""
