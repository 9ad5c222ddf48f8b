"""Host and device of profiled steps, to be played again with other lengths. Pure arithmetic.

In: a `Result` with the device work of profiler windows, and a `Setting`. Out: a `Prediction`, a `WhatIf` or a
`RunAdvice`.

graph      instants, and what has to pass between them: every instant comes as soon as all that it waits for allows
host       one rank's host: its launches, and the calls in which it waited for its device
streams    which work waited for work of another stream
build      the graph of a whole result, its ranks joined where they communicate
lengths    what a setting makes of what passes between instants
forecast   a question answered, with an interval and what it rests on, or not at all
advice     the savings of a run, each with the step without its cause
"""
