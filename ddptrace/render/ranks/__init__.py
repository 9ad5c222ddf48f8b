"""Who waited for whom, for the terminal, the report and the trace.

In: `matches`, `arrivals`, `blame`, `suspects` and `critical_path` of a `Result`. Out: lines, sections, figures and
tracks.
"""
