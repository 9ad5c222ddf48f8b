"""The folder that keeps the compiled library, and whether only this user and root can write there.

Whoever else can write there could have every training of this user run their code. The library's name, with a hash in
it, is no protection: anybody can compute it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from ddptrace.errors import CompileError

ONLY_OURS: Final = 0o700
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
ROOT_UID: Final = 0


def cache_folder() -> Path:
    """Return where the folder is, in the user's cache; it may not exist. Raises CompileError where there is no home
    directory."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "ddptrace"
    except RuntimeError as error:
        raise CompileError("there is no home directory to keep it in: set XDG_CACHE_HOME to a folder") from error


def make_cache_folder() -> Path:
    """Make the folder and its parents where they are missing, for this user only, and return it as `checked_folder`
    does. Raises CompileError where others can write there, OSError where it cannot be made."""
    folder = cache_folder()
    for missing in [one for one in (*reversed(folder.parents), folder) if not one.exists()]:
        missing.mkdir(ONLY_OURS, exist_ok=True)
    return checked_folder(folder)


def checked_folder(folder: Path) -> Path:
    """Return the path of `folder` without symbolic links. Only this user and root can change what lies at that path, so
    that it stays what was checked. Raises CompileError where others can, OSError where there is no such folder."""
    real = folder.resolve(strict=True)
    ours = {os.geteuid(), ROOT_UID}
    _check(real, ours, may_be_sticky=False)
    for parent in real.parents:
        # In a container without root, the owner of / stands for root and has another number.
        _check(parent, ours | {Path("/").stat().st_uid}, may_be_sticky=True)
    return real


def checked_file(path: Path) -> Path:
    """Return the path of a file as `checked_folder` does. Raises CompileError where others can change the file or its
    folder, or the file is a symbolic link."""
    file = checked_folder(path.parent) / path.name
    _check(file, {os.geteuid(), ROOT_UID}, may_be_sticky=False)
    return file


def _check(path: Path, owners: set[int], *, may_be_sticky: bool) -> None:
    """`may_be_sticky`: others may make entries, since they cannot replace one that is not theirs."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        _refuse(path, "is a symbolic link")
    if found.st_uid not in owners:
        _refuse(path, f"belongs to another user (uid {found.st_uid})")
    if found.st_mode & OTHERS_WRITE and not (may_be_sticky and found.st_mode & stat.S_ISVTX):
        _refuse(path, f"can be written by other users (mode {stat.S_IMODE(found.st_mode):04o})")


def _refuse(path: Path, why: str) -> None:
    raise CompileError(
        f"{path} {why}, and code that others put there would run in your trainings: take the right to write from them "
        "(chmod go-w), or set XDG_CACHE_HOME to a folder of your own; then run `ddptrace compile`"
    )
