"""The compiled scanner (`scan.c`): how it is built, and how it is found again.

The build of the package compiles it where a C compiler is, into the folder of its source. Without it the reader in
Python does the same work, and takes longer.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("scan.c")
LIBRARY: Final = SOURCE.with_suffix(".so")
COMPILERS: Final = ("cc", "gcc", "clang")
OPTIONS: Final = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")


def compile_scanner(path: Path = LIBRARY, options: tuple[str, ...] = OPTIONS) -> str | None:
    """Compile the scanner in place of an earlier one. Return why that did not work, or None if it did."""
    path.unlink(missing_ok=True)
    compiler = os.environ.get("CC") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return "no C compiler is on the PATH"
    command = [*shlex.split(compiler), *options, f'-DDDPTRACE_SOURCE="{_hash()}"', "-o", str(path), str(SOURCE)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return f"{command[0]} cannot be run ({error.strerror})"
    return f"{command[0]} failed: {done.stderr.strip()[:500]}" if done.returncode else None


def _hash() -> str:
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


@cache
def scan_library() -> ctypes.CDLL | None:
    """Load the library once; None where it was not built, or from another source."""
    return load_library(LIBRARY)


def load_library(path: Path) -> ctypes.CDLL | None:
    """Load a library that `compile_scanner` made; None if there is none, or it was made from another source."""
    try:
        library = ctypes.CDLL(str(path))  # its functions run without the interpreter's lock
        library.ddptrace_scanner_source.restype = ctypes.c_char_p
        if library.ddptrace_scanner_source() != _hash().encode():
            return None
    except (OSError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.ddptrace_scanner_open.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_char_p, number]
    library.ddptrace_scanner_open.restype = pointer
    library.ddptrace_scanner_texts.argtypes = [pointer, ctypes.c_int, pointer, pointer]
    library.ddptrace_scanner_texts.restype = number
    library.ddptrace_scan.argtypes = [pointer, pointer, number, pointer, pointer, number, pointer]
    library.ddptrace_scan.restype = number
    for name in ("undo", "close"):
        function = getattr(library, f"ddptrace_scanner_{name}")
        function.argtypes, function.restype = [pointer], None
    return library
