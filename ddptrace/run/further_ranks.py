"""Records ranks that the program itself starts: Lightning without a launcher runs the script again for each rank.

It would use plain Python, so that only the first rank would be recorded.
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
    """Have Lightning, once the program imports it, start its ranks under `ddptrace.run` with the same options.

    `argv`: the arguments of ddptrace.run, from which `command` was read.
    """
    options = argv[: len(argv) - len(command.args) - 1]
    said = [word for word in options if word != "--"]  # --out follows, which must still be an option
    arguments = ["-m", "ddptrace.run", *said, "--out", str(command.options.out)]
    for name in STARTERS:
        after_import(name, functools.partial(_change, name, arguments))


def _change(name: str, arguments: Sequence[str]) -> None:
    """Wrap the functions that make commands. If a version of Lightning lacks them, further ranks are not recorded."""
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
    """Insert `arguments` behind the path of Python, which is the first word of the command."""
    return [command[0], *arguments, *command[1:]]
