"""Keeps torch.compile away from our functions in a compiled program.

Dynamo traces every Python frame of such a program. It would warn about our hooks and break the program's graph at each
of them, which would change the buckets of DDP.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakSet

_left: WeakSet[ModuleType] = WeakSet()


def leave_as_it_is(*packages: str) -> None:
    """Have Dynamo skip the functions of these packages, and trace only what they call.

    Covers the modules that are imported now, each once per process. Dynamo itself is not imported.

    Raises ImportError or AttributeError if torch has moved this interface.
    """
    leave, within = _leaving(), tuple(f"{package}." for package in packages)
    for name, module in list(sys.modules.items()):
        if f"{name}.".startswith(within) and module not in _left:
            for code in _code_in(vars(module), name):
                leave(code)
            _left.add(module)


def _leaving() -> Callable[[CodeType], None]:
    """Return the function that makes Dynamo skip a code object, under its name in this torch."""
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        skip_code: Callable[[CodeType], None] = frames.skip_code
        return skip_code
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, strategy)


def _code_in(names: dict[str, object], module: str) -> Iterator[CodeType]:
    """Find the code of the functions and methods that a module defines, and of the functions inside them."""
    for value in list(names.values()):
        if isinstance(value, FunctionType) and value.__module__ == module:
            yield from _with_inner(value.__code__)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _code_in(dict(vars(value)), module)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
