"""Steps in pictures: every step as a bar, one typical step as a time line, and what varies.

In: a `Result` and its `Summary`. Out: figures and sections of the report.
"""
