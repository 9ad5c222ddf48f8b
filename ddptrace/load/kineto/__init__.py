"""Kineto files (torch.profiler's own format), whoever wrote them, as columns, exact to the nanosecond.

In: a path. Out: `KinetoEvents`, or only a `FileHead`.

source   bytes, unpacked                 text     where one event ends and the next begins; exact times
perfetto the same of a Perfetto trace, as Kineto would write it; its packets are in `perfetto_packets`
stream   batches of events               columns  batches to arrays
args     what events say                 flops    operations of an operator, by its shapes
cache    what was read once              head     what a file is, without reading its events
scanner  batches to rows by a compiled library, `scan.c`, where `scan_library` finds one
reader   all of it: `read_kineto`        events   what comes out
"""
