"""What the devices did: which step launched what, on which stream, and whether the device waited for the host.

In: a `RankView` with profiler windows. Out: rows of `streams`, `launches`, `scopes`, `idle`, `kernels` and `copies`,
the populations of `ranks`.
"""
