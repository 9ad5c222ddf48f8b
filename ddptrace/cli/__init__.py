"""The command line. One command, one file: `ddptrace NAME` is the function `NAME` of `ddptrace/cli/NAME.py`.

A command's file is imported when it is run or asked for help, and what it needs inside its function.
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
from typing import Final

import click

COMMANDS: Final = (
    "advise", "analyze", "bench", "compile", "diagnose", "diff", "export", "figures", "hta", "traffic", "view", "watch",
    "whatif",
)  # fmt: skip


class Commands(click.Group):
    """Finds commands by the name of their file, and ends a user's mistake with one line and exit code 1."""

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
            raise click.ClickException("there is not enough memory for this; give it more, or fewer ranks") from error
        except BrokenPipeError:
            raise  # whoever read from us has seen enough: click knows what to do
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise click.ClickException(printable(f"{error.strerror or error}{where}")) from error


def _end(signum: int, frame: object) -> None:
    """Ended from outside: the worker processes are not to outlive us."""
    sys.exit(128 + signum)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ddptrace", prog_name="ddptrace")
def main() -> None:
    """Where the step time of distributed PyTorch training goes, bucket by bucket."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup asked to be left alone
            signal.signal(ending, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows another instead of ending us
