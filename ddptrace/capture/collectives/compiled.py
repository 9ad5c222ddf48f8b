"""`compiled.cpp` as a library: compiled once for a version of torch, then found and loaded by every trace with it.

Calling Python for a bucket costs a hundred times as much as its two records, and no Python code can change that. So a
user who has a compiler may compile this part of the tap; without it everything works, and costs more.

Only this user and root may be able to write in the folder that keeps the library: whoever else can write there can
make every training of this user run their code. The hash in the library's name is no protection: anyone can compute it.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import torch

from ddptrace.errors import CompileError
from ddptrace.own_module import own_module

SOURCE: Final = Path(__file__).with_suffix(".cpp")
COMPILERS: Final = ("c++", "g++", "clang++")
WORDS: Final = 512  # bytes for the message of a failure
_library: ctypes.PyDLL | None = None


def library_path() -> Path | None:
    """Return the path of the library for this torch, whoever can write there; None if there is none, or only a part of
    it: a library that was cut off would end the process that loads it. Its name holds its length."""
    with contextlib.suppress(OSError, CompileError):
        for path in _made(cache_folder()):
            if path.stem.rpartition("-")[2] == str(path.stat().st_size):
                return path
    return None


def compile_library() -> Path:
    """Compile the library in place of earlier ones for this torch, prove it by a short training, and return its path.

    Raises CompileError if that does not work or if others can write there, OSError if the cache cannot be written.
    """
    folder = make_cache_folder()
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside, "made.so")
        _run([*_compiler(), *_options(), "-o", str(made), str(SOURCE), *_libraries()], "does not compile")
        made.chmod(ONLY_OURS)
        path = folder / f"{_name()}-{made.stat().st_size}.so"
        made.replace(path)  # another process may be compiling the same
    for earlier in set(_made(folder)) - {path}:
        earlier.unlink(missing_ok=True)
    try:
        _run(own_module("ddptrace.capture.compiled_check"), "does not work")
    except CompileError:
        path.unlink(missing_ok=True)
        raise
    return path


def load() -> ctypes.PyDLL | None:
    """Load the library once; it stays in torch's dispatcher. Return None if it was not compiled for this torch.

    Raises CompileError if others can write it, OSError if it cannot be loaded.
    """
    global _library
    if _library is None and (path := library_path()) is not None:
        _library = _load(checked_file(path))
    return _library


def loaded() -> ctypes.PyDLL | None:
    return _library


def _load(path: Path) -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(path))  # none of its functions waits for anything: the interpreter's lock may be held
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.ddptrace_watch.argtypes = [ctypes.c_int]
    library.ddptrace_learn.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    library.ddptrace_begin.argtypes = [pointer, number, ctypes.c_int]
    library.ddptrace_failure.argtypes = [ctypes.POINTER(number), ctypes.POINTER(number), pointer, ctypes.c_size_t]
    for name in ("watch", "forget", "let_go"):
        getattr(library, f"ddptrace_{name}").restype = None
    for name in ("end", "under_way"):
        getattr(library, f"ddptrace_{name}").restype = number
    return library


def _made(folder: Path) -> list[Path]:
    """Return the libraries for this torch, whole or not."""
    return list(folder.glob(f"{_name()}-*.so"))


def _name() -> str:
    """Return its name: a hash of its source and of the torch that it is for."""
    made_for = (SOURCE.read_text(), torch.__version__, torch.version.git_version, platform.machine(), _abi())
    return f"buckets-{torch.__version__}-{hashlib.sha256(repr(made_for).encode()).hexdigest()[:16]}"


def _abi() -> bool:
    return bool(torch.compiled_with_cxx11_abi())


def _options() -> list[str]:
    include = Path(torch.__file__).parent / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include")
    given = ["-shared", "-fPIC", "-O2", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={int(_abi())}"]
    return [*given, *(word for folder in folders for word in ("-isystem", str(folder)))]


def _libraries() -> list[str]:
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu", "-lc10"]


def _compiler() -> list[str]:
    named = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if named is None:
        raise CompileError("no C++ compiler is on the PATH: install g++ (Debian: apt-get install g++), or set CXX")
    return shlex.split(named)


def _run(command: list[str], failing: str) -> None:
    """Raise CompileError if the command fails. `failing`: what that means."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise CompileError(f"{command[0]} cannot be run ({error.strerror}): install g++, or set CXX") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        said = next((line for line in lines if "error:" in line), lines[-1])
        raise CompileError(
            f"the recorder of buckets {failing} with torch {torch.__version__} ({said}); tracing works without it, and"
            " costs more"
        )


# The folder that keeps it ---------------------------------------------------------------------------------------------


ONLY_OURS: Final = 0o700
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
ROOT_UID: Final = 0


def cache_folder() -> Path:
    """Return the path of the folder, in the user's cache; it may not exist.

    Raises CompileError if there is no home directory.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "ddptrace"
    except RuntimeError as error:
        raise CompileError("there is no home directory for the library: set XDG_CACHE_HOME to a folder") from error


def make_cache_folder() -> Path:
    """Make the folder and its missing parents, for this user only, and return it as `checked_folder` does.

    Raises CompileError if others can write there, OSError if it cannot be made.
    """
    folder = cache_folder()
    for missing in [path for path in (*reversed(folder.parents), folder) if not path.exists()]:
        missing.mkdir(ONLY_OURS, exist_ok=True)
    return checked_folder(folder)


def checked_folder(folder: Path) -> Path:
    """Return the path of `folder` without symbolic links, once it is certain that only this user and root can change
    what lies there.

    Raises CompileError if others can, OSError if there is no such folder.
    """
    real = folder.resolve(strict=True)
    ours = {os.geteuid(), ROOT_UID}
    _check(real, ours, may_be_sticky=False)
    for parent in real.parents:
        # In a container without root, the owner of / stands for root and has another number.
        _check(parent, ours | {Path("/").stat().st_uid}, may_be_sticky=True)
    return real


def checked_file(path: Path) -> Path:
    """Return the path of a file as `checked_folder` does.

    Raises CompileError if others can change the file or its folder, or if the file is a symbolic link.
    """
    file = checked_folder(path.parent) / path.name
    _check(file, {os.geteuid(), ROOT_UID}, may_be_sticky=False)
    return file


def _check(path: Path, owners: set[int], *, may_be_sticky: bool) -> None:
    """`may_be_sticky`: allow a folder in which others make entries but cannot replace those of other users."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        _refuse(path, "is a symbolic link")
    if found.st_uid not in owners:
        _refuse(path, f"belongs to another user (uid {found.st_uid})")
    if found.st_mode & OTHERS_WRITE and not (may_be_sticky and found.st_mode & stat.S_ISVTX):
        _refuse(path, f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})")


def _refuse(path: Path, why: str) -> None:
    raise CompileError(
        f"{path} {why}, and code that others put there would run in your trainings: remove their permission to write "
        "(chmod go-w), or set XDG_CACHE_HOME to a folder that only you can write; then run `ddptrace compile`"
    )
