"""How far the clocks of the ranks lie apart, and how sure that is.

In: matched collectives, waits and remote calls of all ranks. Out: rows of `clocks`, and all tables on one time line.
"""
