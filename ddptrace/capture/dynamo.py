"""Keeps torch.compile away from our own frames.

While a compiled program runs, Dynamo looks at every Python frame, those of our hooks too: it would warn of what it
finds there, break the program's graph, and so change the buckets of the DDP that is being watched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType

PACKAGES = ("ddptrace.capture", "ddptrace.record")


def hide_from_dynamo() -> None:
    """Have Dynamo run our functions as they are, and look at what they call. Dynamo itself is not imported for it.

    Raises ImportError or AttributeError where torch has moved this.
    """
    from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

    as_it_is = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
    for code in _own_code():
        set_code_exec_strategy(code, as_it_is)


def _own_code() -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES):
            yield from _code_in(vars(module), name)


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
