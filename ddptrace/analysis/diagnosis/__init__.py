"""What a job that hangs, crashed or was killed was doing.

In: a `JobState`, the last that every rank recorded. Out: a `Diagnosis` of verdicts, the gravest first.
"""
