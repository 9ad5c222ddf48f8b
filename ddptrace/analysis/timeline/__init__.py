"""The step on the time lines of host and device, to be played again with other lengths. Pure arithmetic.

In: a `Result` with the device work of profiler windows. Out: how long each step takes when played again.

graph      instants, and what has to pass between them: every instant comes as soon as all that it waits for allows
host       one rank's host: its launches, and the calls in which it waited for its device
streams    which work waited for work of another stream
build      the graph of a whole result, its ranks joined where they communicate
steps      the lengths of the steps as played, beside those recorded
"""
