"""Remote calls, for the terminal, the report and the trace.

In: `rpcs` and `rpc_pairs` of a `Result`. Out: lines, a section and tracks.
"""
