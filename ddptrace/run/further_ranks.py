"""Ranks that the program starts by itself: Lightning, started without a launcher, runs the script again for each rank.

It would run it under plain Python, so that only the first rank were recorded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from ddptrace.run.after_import import after_import
from ddptrace.run.options import Command

STARTERS: Final = (
    "lightning.fabric.strategies.launchers.subprocess_script",
    "lightning_fabric.strategies.launchers.subprocess_script",
)
COMMANDS: Final = ("_basic_subprocess_cmd", "_hydra_subprocess_cmd")


def record_further_ranks(argv: Sequence[str], command: Command) -> None:
    """Have what starts ranks start them under `ddptrace.run` as it was started itself, once the program imports it.

    `argv`: of ddptrace.run, as `command` was read from it.
    """
    options = argv[: len(argv) - len(command.args) - 1]
    said = [word for word in options if word != "--"]  # what follows is to be an option too
    arguments = ["-m", "ddptrace.run", *said, "--out", str(command.options.out)]
    for name in STARTERS:
        after_import(name, functools.partial(_change, name, arguments))


def _change(name: str, arguments: Sequence[str]) -> None:
    """Names that a version of Lightning has not are left out: then the further ranks go unrecorded."""
    module = sys.modules[name]
    for command in COMMANDS:
        original = getattr(module, command, None)
        if original is not None:
            setattr(module, command, _under_run(original, arguments))


def _under_run(original: Callable[..., Any], arguments: Sequence[str]) -> Callable[..., Any]:
    @functools.wraps(original)
    def command(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if isinstance(made, tuple):  # with the directory to run it in
            return _inserted(made[0], arguments), *made[1:]
        return _inserted(made, arguments)

    return command


def _inserted(command: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """`command` is Python's own path, then a script or -m and a module, then arguments."""
    return [command[0], *arguments, *command[1:]]
