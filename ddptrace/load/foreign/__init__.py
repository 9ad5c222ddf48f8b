"""Traces that torch.profiler wrote without ddptrace: read as if a rank had recorded them.

In: the trace files of one rank. Out: its `RankRun`.

trace     threads and ranges of one file           calls    collectives on a device, of Gloo, and those launched only
identity  which collective it was                  units    which of them serve DDP, FSDP2 or a pipeline
origins   who wanted it                            rank     all files of a rank
window    one file, its steps and phases           experts  which direction an exchange of experts serves
"""
