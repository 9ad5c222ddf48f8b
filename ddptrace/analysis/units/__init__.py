"""Units: which communication serves what one decision of the user groups, and what it costs along each dimension.

In: a rank's communications, units and buckets. Out: rows of `units`, `dimensions` and `parallelism`. And of FSDP units
on CPUs: a step under a `Setting`, with its peak memory.

script     what a rank's host did for its units in each step, taken apart
plan       what it would do under a setting, as operations, with the memory that they hold
play       operations of all ranks against each other, over one wire
forecast   a question answered, with an interval and what it rests on, or not at all
advice     the best way among many, and the calls that set it
"""
