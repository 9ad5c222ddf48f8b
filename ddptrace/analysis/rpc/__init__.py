"""Remote calls: both sides of each together, and what their callers waited for.

In: a rank's RPC records. Out: rows of `rpcs` and `rpc_pairs`, and digests by function and by pair of workers.
"""
