"""Traces that torch.profiler wrote without ddptrace: what they tell, as if a rank had recorded it.

In: the trace files of one rank. Out: its `RankRun`.

trace     threads and ranges of one file           calls    collectives on a device, of Gloo, and those launched only
steps     steps and phases                         identity which collective it was
ddp       which of them carry gradients            window   one file     rank   all files of a rank
"""
