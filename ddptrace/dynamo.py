"""Keeps torch.compile away from frames of ours that a compiled program calls.

Dynamo looks at every Python frame while such a program runs: it would warn of what it finds in our hooks, break the
program's graph at each of them, and so change the buckets of the DDP that is being watched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any


def leave_as_it_is(*packages: str) -> None:
    """Have Dynamo run the functions of these packages as they are, as far as they are imported, and look only at what
    they call. Dynamo itself is not imported for it.

    Raises ImportError or AttributeError where torch has moved this.
    """
    leave = _leaving()
    for name, module in list(sys.modules.items()):
        if any(name == package or name.startswith(f"{package}.") for package in packages):
            for code in _code_in(vars(module), name):
                leave(code)


def _leaving() -> Callable[[CodeType], None]:
    """What tells Dynamo of a function, under the name that this torch has for it."""
    import torch

    frames: Any = torch._C._dynamo.eval_frame
    if not hasattr(frames, "set_code_exec_strategy"):
        skip_code: Callable[[CodeType], None] = frames.skip_code
        return skip_code
    strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, strategy)


def _code_in(names: dict[str, object], module: str) -> Iterator[CodeType]:
    """Code of the functions and methods that a module defines, and of the functions inside them."""
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
