"""`python -m ddptrace.run`: records an unchanged training program, without a line of ddptrace in it.

In: a command line, with the program and its arguments. Out: the run directory, and the exit code of the program.

Read `__main__.py` first. It calls the others in this order:

options     what the command line, the environment and pyproject.toml ask for
recording   the trace around the program, from its import of torch to the end of the interpreter
program     runs the program as plain Python does
"""
