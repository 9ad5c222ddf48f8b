"""The lines of the program and of the library in a dump's stack frames, where torch's own are left out.

all_reduce        torch/distributed/distributed_c10d.py     torch's
reduce_loss       site-packages/megatron/training/utils.py  the library's line
train_step        /work/train.py                            the program's line
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, Final

OF_TORCH: Final = re.compile(
    r"(?:site|dist)-packages/torch/"
    r"|(?:^|/)torch/(?:autograd|cuda|distributed|fx|multiprocessing|nn|optim|utils|_\w+)(?:/|\.py$)"
    r"|\.(?:cpp|cc|c|h|hpp|cu|so)(?:\.\d+)*$|^<|^\?\?$|^$"
)
"""Torch's own files, installed or built from source, code without a file, and the frames of C++."""
OF_PYTHON: Final = re.compile(r"(?:^|/)lib/python\d[^/]*/(?!.*(?:site|dist)-packages/)")
INSTALLED: Final = re.compile(r".*/(?:site|dist)-packages/", re.DOTALL)
PARTS: Final = 2
"""Of the path of a file of the program, so many parts are shown."""
MOST_FRAMES: Final = 1_000

Lines = tuple[str | None, str | None]


def lines_of(frames: object) -> Lines:
    """Return the innermost line of the program, as in "work/train.py:42 in step", and the line of the library that it
    called, if there is one between the program and torch. Where there is only a library, its line counts as the
    program's. `frames`: of a dump's entry, innermost first."""
    if not isinstance(frames, Sequence) or isinstance(frames, str | bytes):
        return None, None
    library = None
    for frame in frames[:MOST_FRAMES]:
        file, line, name = _fields(frame)
        if OF_TORCH.search(file) or OF_PYTHON.search(file):
            continue
        if not INSTALLED.match(file):
            return _line(file, line, name), library
        library = library or _line(file, line, name)
    return library, None


def _fields(frame: Any) -> tuple[str, int, str]:
    """As they are; an empty file where there is none."""
    told = frame if isinstance(frame, dict) else {}
    file, line, name = told.get("filename"), told.get("line"), told.get("name")
    return (
        file if isinstance(file, str) else "",
        line if isinstance(line, int) else 0,
        name if isinstance(name, str) else "?",
    )


@functools.lru_cache(4096)
def _line(file: str, line: int, name: str) -> str:
    return f"{_short(file)}:{line} in {name}"


def _short(file: str) -> str:
    """A library's file as Python imports it; of any other, the end of its path."""
    installed = INSTALLED.match(file)
    return file[installed.end() :] if installed else "/".join(file.split("/")[-PARTS:])
