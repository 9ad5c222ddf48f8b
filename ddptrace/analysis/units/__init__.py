"""Units: which communication serves what one decision of the user groups, and what it costs along each dimension.

In: a rank's communications, units and buckets. Out: rows of `units`, `dimensions` and `parallelism`. And of FSDP units:
a step under a `Setting`, with its peak memory.

members     which unit each communication belongs to, and which dimension: all tables of units begin here
rows        what each unit communicated, how early, and when it was needed
dimensions  which kinds of parallelism a run shows, what each costs, and how much of it is waiting
digest      what each unit costs a typical step
costs       what changes of FSDP units would save a typical step, at most

A step under a `Setting`, of FSDP units:

clock       when what computes was done with what the host had asked for: on a device, later
script      what a rank did for its units in each step, taken apart
plan        what it would do under a setting, as operations, with the memory that they hold
play        operations of all ranks against each other, over one wire
forecast    a question answered, with an interval and what it rests on, or not at all
advice      the best way among many, and the calls that set it
"""
