"""The command: torchrun --nproc-per-node 2 -m ddptrace.run [options] script.py args…"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ddptrace.errors import DdptraceError
from ddptrace.run.options import read_command
from ddptrace.run.program import prepare, run
from ddptrace.run.recording import Recording, record_further_ranks, refuse


def main() -> None:
    """Run the program that the command line names. A mistake in the command line ends in exit code 2."""
    try:
        argv = sys.argv[1:]  # `prepare` changes sys.argv for the program
        command = read_command(argv, os.environ, Path.cwd())
        recording = Recording(command.options)
        with recording.only_if_it_runs():
            program = prepare(command, recording.arm)
        record_further_ranks(argv, command)
    except DdptraceError as error:
        refuse(error)
    try:
        run(program)
    except SystemExit as error:
        recording.ended_by(error)
        raise


if __name__ == "__main__":
    main()
