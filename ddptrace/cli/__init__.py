"""The command line: `ddptrace NAME` calls the function `NAME` of `ddptrace/cli/NAME.py`.

A command's file is imported only when the command runs or prints its help, and imports the rest inside its function.
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
from typing import Final

import click

COMMANDS: Final = (
    "advise",
    "analyze",
    "bench",
    "compile",
    "diagnose",
    "diff",
    "export",
    "figures",
    "hta",
    "traffic",
    "view",
    "watch",
    "whatif",
)


class Commands(click.Group):
    """Finds commands by the name of their file. A user's mistake ends in one line and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"ddptrace.cli.{cmd_name}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> object:
        from ddptrace.cli.say import printable_lines
        from ddptrace.errors import DdptraceError, printable

        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = printable_lines(error.message)  # it quotes what was typed
            raise
        except DdptraceError as error:
            raise click.ClickException(str(error)) from error
        except MemoryError as error:
            raise click.ClickException("not enough memory; use a machine with more, or give fewer ranks") from error
        except BrokenPipeError:
            raise  # the reader of our output has closed it: click handles that
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise click.ClickException(printable(f"{error.strerror or error}{where}")) from error


def _end(signum: int, frame: object) -> None:
    """Exit in order, so that the worker processes end too."""
    sys.exit(128 + signum)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ddptrace", prog_name="ddptrace")
def main() -> None:
    """Show where the step time of distributed PyTorch training goes, bucket by bucket."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup asked to be left alone
            signal.signal(ending, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print a substitute for a character that the terminal lacks
