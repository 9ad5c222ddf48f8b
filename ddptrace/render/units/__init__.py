"""Units for a reader: those that a step waits for, and what each dimension of parallelism costs.

In: the digests of `analysis.units`. Out: lines of the terminal and a section of the report.
"""
