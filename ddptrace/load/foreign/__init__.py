"""Traces that torch.profiler wrote without ddptrace: what they tell, as if a rank had recorded it.

names     ranks in file names                      trace    threads and ranges of one file
steps     steps and phases                         calls    collectives on a device
host      collectives of Gloo, and those launched only       identity   which collective it was
ddp       which of them carry gradients            window   one file     rank   all files of a rank
"""
