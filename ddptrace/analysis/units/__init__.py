"""Units: which communication serves what one decision of the user groups, and what it costs along each dimension.

In: a rank's communications, units and buckets. Out: rows of `units`, `dimensions` and `parallelism`.
"""
