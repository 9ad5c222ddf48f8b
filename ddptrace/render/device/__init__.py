"""What devices did, for the terminal, the report and the trace.

In: `streams`, `launches`, `scopes` and the device activity of a `Result`. Out: lines, sections, figures and tracks.
"""
