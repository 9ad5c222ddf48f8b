"""The programs of the sweep: what each is called, does and needs."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HOME: Final = "tests.hostile.programs"

PROGRAMS: Final[dict[str, Program]] = {}


@dataclass(frozen=True, slots=True)
class Program:
    """One hostile program.

    `ranks`: how many processes run it. `code`: its exit code, negative where a signal ends it; one for each rank where
    they differ. `ends`: Python's shutdown is a part of it; the others leave by `os._exit`, which is quicker.
    `leaves`: the trace is over before the program is, so that what it leaves can be compared. `flags`: of
    the interpreter, which is then started anew instead of forked. `needs`: packages that may be missing. `imports`:
    modules to import before the fork, because they take long. `python`: the first version that can run it. `notes`:
    findings of ddptrace about itself that it provokes on purpose. `environ`: variables that it starts with. `records`:
    whether ddptrace must have recorded something. `profiled`: windows of torch.profiler leave it as it is. `attempts`:
    how often an elastic launcher starts its ranks; `code` is that of the last time.
    """

    name: str
    run: Callable[..., Any]
    ranks: int = 1
    code: int | tuple[int, ...] = 0
    ends: bool = False
    leaves: bool = True
    flags: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    notes: frozenset[str] = frozenset()
    environ: tuple[tuple[str, str], ...] = ()
    records: bool = True
    profiled: bool = True
    attempts: int = 1

    @property
    def codes(self) -> tuple[int, ...]:
        """The exit code of each rank."""
        return self.code if isinstance(self.code, tuple) else (self.code,) * self.ranks

    @property
    def places_the_trace(self) -> bool:
        """Whether the program itself enters the trace, which it is given; the others run inside one as a whole."""
        return bool(inspect.signature(self.run).parameters)


def program(**facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the sweep under its own name; `facts` are fields of `Program`."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        assert run.__name__ not in PROGRAMS, run.__name__
        PROGRAMS[run.__name__] = Program(run.__name__, run, **facts)
        return run

    return add


def load() -> dict[str, Program]:
    """Every program, from all files of the folder."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent / "programs")]):
        importlib.import_module(f"{HOME}.{module.name}")
    return PROGRAMS
