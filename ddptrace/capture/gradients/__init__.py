"""Gradients: when each is ready, which bucket it is in, what a communication hook makes of the bucket.

In: stock DDP's modules, and what a `BucketedDataParallel` reports. Out: REDUCER, LAYOUT, READY and HOOK records.
"""
