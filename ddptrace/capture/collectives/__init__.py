"""Collectives: each call that reaches torch's dispatcher, its completion, and the host's waits for it.

In: calls of `c10d` operators, from Python and from C++. Out: CALL, ORIGIN, DONE, WAIT and GROUP records.

A call goes from `tap.py` to `calls.py`. A bucket of stock DDP takes the short way of `bucket_sends.py`, without Python
if `ddptrace compile` was run.
"""
