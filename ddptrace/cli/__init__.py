"""The command line: `ddptrace NAME` calls the function `NAME` of `ddptrace/cli/NAME.py`.

A command's file is imported only when the command runs or prints its help, and imports the rest inside its function.
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Final

import click

SECTIONS: Final = {
    "Record a training": ("run",),
    "Understand a run or traces": (
        "analyze",
        "view",
        "diff",
        "traffic",
        "diagnose",
        "nccl",
        "trim",
        "figures",
        "tables",
        "hta",
    ),
    "Watch a job while it runs": ("watch", "profile", "export"),
    "Decide what to change": ("advise", "whatif"),
    "Measure and prepare your machine": ("bench", "compile"),
}
COMMANDS: Final = tuple(sorted(chain.from_iterable(SECTIONS.values())))


class Commands(click.Group):
    """Finds commands by the name of their file. A user's mistake ends in one line and exit code 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"ddptrace.cli.{cmd_name}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for section, names in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), self._summary(ctx, name)) for name in names])

    def _summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(limit=67)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the command that was probably meant if there is none of this name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = [f"analyze {args[0]}"] if Path(args[0]).exists() else get_close_matches(args[0], COMMANDS, n=1)
            if not meant:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean `ddptrace {meant[0]}`?", ctx) from error

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


def _say_version(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    """Also say which reader of profiler files is installed."""
    if not is_given or context.resilient_parsing:
        return
    from ddptrace.load.kineto.scan_library import scan_library
    from ddptrace.version import __version__

    reader = "Python alone" if scan_library() is None else "a compiled scanner"
    click.echo(f"ddptrace, version {__version__}\nProfiler files are read by {reader}.")
    context.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Show the version, and exit.",
)
def main() -> None:
    """Show where the step time of distributed PyTorch training goes, bucket by bucket."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:  # nohup asked to be left alone
            signal.signal(ending, _end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print a substitute for a character that the terminal lacks
