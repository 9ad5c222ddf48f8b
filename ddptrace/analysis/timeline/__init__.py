"""Host and device of profiled steps, to be played again with other lengths. Pure arithmetic.

In: a `Result` with the device work of profiler windows, and a `Setting`. Out: a `Prediction`, a `WhatIf` or a
`RunAdvice`.

graph        instants, and what has to pass between them: every instant comes as soon as all that it waits for allows
rank_window  one rank: its host's launches, the calls in which it waited for its device, and which work waited for which
build        the graph of a whole result, its ranks joined where they communicate
forecast     a question answered, with an interval and what it rests on, or not at all
advice       the savings of a run, each with the step without its cause
"""
