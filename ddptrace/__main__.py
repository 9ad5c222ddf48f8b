"""`python -m ddptrace` is the command `ddptrace`."""

from ddptrace.cli import main

main(prog_name="ddptrace")
