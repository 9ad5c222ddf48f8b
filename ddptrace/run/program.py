"""Runs a script or a module as `python script.py` and `python -m module` do; the program sees no difference.

Read `__main__.py` first, which calls `prepare` and then `run`.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final

from ddptrace.errors import DdptraceError
from ddptrace.run.options import Command

LAUNCHERS: Final = {
    "torchrun",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed",
    "deepspeed.launcher.runner",
}


@dataclass(frozen=True, slots=True)
class Program:
    """`load` returns the code to run. It raises the program's errors: a syntax error, a package that fails."""

    module: ModuleType
    load: Callable[[], CodeType]


def prepare(command: Command, arm: Callable[[], None]) -> Program:
    """Make `__main__`, `sys.argv` and `sys.path` what the program would find under plain Python.

    `arm` is called before anything of the program is imported. Raises DdptraceError if there is no such program, or if
    it is a launcher.
    """
    name = command.program
    if (name if command.is_module else Path(name).name) in LAUNCHERS:
        raise DdptraceError(
            f"{name} is a launcher, which starts the ranks: let it start ddptrace.run, "
            "as in torchrun -m ddptrace.run script.py"
        )
    sys.argv[:] = ["-m" if command.is_module else name, *command.args]
    if command.is_module:
        arm()
        return _module(name)
    program = _folder(name) if Path(name).is_dir() or zipfile.is_zipfile(name) else _script(name)
    arm()
    return program


def run(program: Program) -> None:
    """Run the program. Raises what ended it: SystemExit, or an exception whose traceback begins in the program."""
    sys.modules["__main__"] = program.module
    try:
        _execute(program)
    except SystemExit:
        raise
    except BaseException:
        _begin_tracebacks_in_the_program()
        raise


def _execute(program: Program) -> None:
    exec(program.load(), vars(program.module))


def _begin_tracebacks_in_the_program() -> None:
    """Have the current excepthook, perhaps the program's, see the traceback without our frames."""
    theirs = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = theirs
        within = _within(traceback)
        sys.last_traceback = within
        theirs(kind, error.with_traceback(within), within)

    sys.excepthook = show


def _within(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback below `_execute`; all of it if it does not contain that."""
    at = traceback
    while at is not None and at.tb_frame.f_code is not _execute.__code__:
        at = at.tb_next
    if at is None:
        return traceback
    below = at.tb_next
    is_ours = below is not None and below.tb_frame.f_globals is globals()  # the program did not even compile
    return None if is_ours else below


def _script(name: str) -> Program:
    path = os.path.join(Path.cwd(), name)  # noqa: PTH118 (keeps dots and links, as plain Python does)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise DdptraceError(f"cannot run {path}: {error.strerror}; give a script, or -m and a module") from None
    _first_on_the_path(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    module = _main(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path), __package__=None)
    return Program(module, lambda: compile(source, path, "exec", dont_inherit=True))


def _folder(name: str) -> Program:
    """Prepare a folder or an archive with a `__main__.py` in it."""
    path = os.path.abspath(name)  # noqa: PTH100
    _first_on_the_path(path)
    found = sys.modules.pop("__main__")  # find_spec would return this one
    try:
        spec = importlib.util.find_spec("__main__")
    finally:
        sys.modules["__main__"] = found
    if spec is None:
        raise DdptraceError(f"cannot run {path}: it has no __main__.py; give a script, or -m and a module")
    return _of_spec(spec)


def _module(name: str) -> Program:
    """Prepare `python -m name`; of a package its `__main__`. Its parents are imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError) as error:  # a parent is missing or no package; or a relative name
        if isinstance(error, ModuleNotFoundError) and error.name and not f"{name}.".startswith(f"{error.name}."):
            raise  # a parent exists, but one of its own imports is missing
        spec = None
    if spec is None or spec.loader is None:
        raise DdptraceError(f"there is no module {name} to run; give a module as for python -m, or a script")
    if spec.submodule_search_locations is not None:
        return _module(f"{name}.__main__")
    program = _of_spec(spec)
    sys.argv[0] = str(spec.origin)
    return program


def _of_spec(spec: ModuleSpec) -> Program:
    loader: Any = spec.loader
    module = _main(__file__=spec.origin, __cached__=spec.cached, __loader__=loader, __package__=spec.parent)
    module.__spec__ = spec
    return Program(module, lambda: _code(loader.get_code(spec.name), spec.name))


def _code(found: CodeType | None, name: str) -> CodeType:
    if found is None:
        raise ImportError(f"No code object available for {name}", name=name)
    return found


def _main(**names: object) -> ModuleType:
    module = ModuleType("__main__")
    vars(module).update(__annotations__={}, __builtins__=builtins, __spec__=None, **names)
    return module


def _first_on_the_path(folder: str) -> None:
    """Replace the working directory, which `python -m ddptrace.run` has put first unless in safe-path mode."""
    if not sys.flags.safe_path:
        sys.path[0] = folder
