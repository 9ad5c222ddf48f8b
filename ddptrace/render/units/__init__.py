"""Units for a reader: those that a step waits for, and what each dimension of parallelism costs.

In: a `Result`. Out: lines of text and sections of the report.
"""
