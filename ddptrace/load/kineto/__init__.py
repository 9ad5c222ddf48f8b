"""Kineto files (torch.profiler's own format), whoever wrote them: as columns, exact to the nanosecond.

In: a path. Out: `KinetoEvents`, or only a `FileHead`.

source   bytes, inflated                 text     where one event ends and the next begins
stream   batches of events               times    decimal text to integer nanoseconds
columns  batches to arrays               args     what events say of collectives
facts    what stands around the events   head     the same, without reading the events
cache    what was read once              reader   all of it: `read_kineto`
"""
