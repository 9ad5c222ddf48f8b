"""A compiled library that another user could have written is not loaded: a planted one would leave a mark."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptrace.capture.collectives import compiled
from ddptrace.errors import CompileError
from ddptrace.load.run import read_run
from tests.conftest import need
from tests.launch import environment, server, torchrun
from tests.planted_modules import plant

STRANGER = 4321
MARK = "loaded"
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that makes a file named `loaded` where the process is that loads it; it has the name of ours."""
    need(shutil.which("g++"), "g++ (apt-get install g++)")
    folder = tmp_path_factory.mktemp("planted")
    source, made = folder / "planted.cpp", folder / "planted.so"
    source.write_text(
        "#include <cstdio>\n"
        f'__attribute__((constructor)) static void leave() {{ if (FILE* mark = fopen("{MARK}", "w")) fclose(mark); }}\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    made.chmod(0o700)
    return made.rename(folder / f"{compiled._name()}-{made.stat().st_size}.so")


@pytest.fixture
def library(planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The planted library where traces look, in folders that only this user can write."""
    folder = tmp_path / "above" / "cache" / "ddptrace"
    for each in (folder.parent.parent, folder.parent, folder):
        each.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(planted, folder))


def trained(folder: Path) -> tuple[str, list[str]]:
    """What a training said, and what its run says about the compiled library."""
    said = torchrun("compiled_ways.py", "plain", folder / "run", ranks=1)
    return said, [one.message for one in read_run(folder / "run").findings if one.code.startswith("compiled-")]


def open_file(file: Path) -> Path:
    file.chmod(0o622)
    return file


def open_folder(file: Path) -> Path:
    file.parent.chmod(0o777)
    return file.parent


def open_to_the_group(file: Path) -> Path:
    file.parent.chmod(0o770)
    return file.parent


def sticky_folder(file: Path) -> Path:
    file.parent.chmod(0o1777)
    return file.parent


def open_parent(file: Path) -> Path:
    file.parents[2].chmod(0o777)
    return file.parents[2]


def link(file: Path) -> Path:
    file.symlink_to(file.rename(file.parents[3] / "elsewhere.so"))
    return file


def strangers_file(file: Path) -> Path:
    os.chown(file, STRANGER, STRANGER)
    return file


def strangers_folder(file: Path) -> Path:
    os.chown(file.parent, STRANGER, STRANGER)
    return file.parent


def strangers_parent(file: Path) -> Path:
    os.chown(file.parents[1], STRANGER, STRANGER)
    return file.parents[1]


def strangers_link_to_a_folder(file: Path) -> Path:
    """What it leads to counts."""
    theirs = file.parent.rename(file.parents[3] / "theirs")
    file.parent.symlink_to(theirs)
    os.chown(theirs, STRANGER, STRANGER)
    return theirs


def test_a_library_that_only_this_user_can_write_is_loaded(library: Path, tmp_path: Path) -> None:
    """Else what follows would show nothing. This one has none of the functions that are looked for."""
    _, (note,) = trained(tmp_path)
    assert (tmp_path / MARK).exists() and "cannot be loaded" in note


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (open_file, "can be written by other users (mode 0622)"),
        (open_folder, "can be written by other users (mode 0777)"),
        (open_to_the_group, "can be written by other users (mode 0770)"),
        (sticky_folder, "can be written by other users (mode 1777)"),
        (open_parent, "can be written by other users (mode 0777)"),
        (link, "is a symbolic link"),
        *(pytest.param(spoil, f"belongs to another user (uid {STRANGER})", marks=only_root)
          for spoil in (strangers_file, strangers_folder, strangers_parent, strangers_link_to_a_folder)),
    ],
)  # fmt: skip
def test_one_that_others_could_have_written_is_not_and_training_says_so_once(
    spoil: Callable[[Path], Path], words: str, library: Path, tmp_path: Path
) -> None:
    spoiled = spoil(library)
    mode = spoiled.lstat().st_mode
    said, (note,) = trained(tmp_path)
    assert not (tmp_path / MARK).exists()
    assert note.startswith(f"the compiled library is not loaded: {spoiled} {words}, and code that others put there")
    assert said.count(f"RuntimeWarning: ddptrace: {note}") == 1 and "taken 0" in said
    assert spoiled.lstat().st_mode == mode


def test_a_program_that_makes_errors_of_warnings_trains_on(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_folder(library)
    monkeypatch.setenv("PYTHONWARNINGS", "error::RuntimeWarning")
    run = [sys.executable, "-c", f"import ddptrace\nwith ddptrace.trace({str(tmp_path / 'run')!r}): print('trained')"]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    codes = [one.code for one in read_run(tmp_path / "run").findings]
    assert codes.count("compiled-refused") == 1 and "tap-failed" not in codes


@pytest.mark.parametrize("way", ["sticky-parent", "linked-folder", "linked-cache"])
def test_folders_as_users_have_them_are_no_obstacle(
    way: str, compiled_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "anybodys" / "cache"
    cache.parent.mkdir()
    cache.mkdir(mode=0o700)
    if way == "sticky-parent":
        cache.parent.chmod(0o1777)
        shutil.copytree(compiled_cache / "ddptrace", cache / "ddptrace")
    elif way == "linked-folder":
        (cache / "ddptrace").symlink_to(compiled_cache / "ddptrace")
    else:
        cache.rmdir()
        cache.symlink_to(compiled_cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    said, notes = trained(tmp_path)
    assert notes == [] and not re.search(r"taken 0\b", said)


def compile_in(folder: Path, compiler: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "ddptrace", "compile"]
    told = environment() | {"CXX": str(compiler)} | environ
    return subprocess.run(command, cwd=folder, env=told, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """Makes a library with nothing in it."""
    need(shutil.which("g++"), "g++ (apt-get install g++)")
    return script(tmp_path / "compiler", "g++ -shared -x c++ /dev/null -o")


def script(path: Path, makes: str) -> Path:
    """`makes`: a command that the name of the file is to follow."""
    path.write_text(f'#!/bin/sh\nuntil [ "$1" = -o ]; do shift; done\nexec {makes} "$2"\n')
    path.chmod(0o700)
    return path


@pytest.mark.parametrize("spoil", [open_folder, open_parent, pytest.param(strangers_folder, marks=only_root)])
def test_compile_refuses_a_folder_that_others_can_write_and_leaves_it_as_it_is(
    spoil: Callable[[Path], Path], library: Path
) -> None:
    spoiled = spoil(library)
    before = spoiled.stat().st_mode, list(library.parent.iterdir())
    with pytest.raises(CompileError, match=re.escape(f"{spoiled} ")) as refused:
        compiled.compile_library()
    assert "set XDG_CACHE_HOME" in str(refused.value) and "\n" not in str(refused.value)
    assert (spoiled.stat().st_mode, list(library.parent.iterdir())) == before


def test_what_compile_makes_only_this_user_can_read_and_write(compiled_cache: Path, tmp_path: Path) -> None:
    """Under a umask that gives everything to everybody."""
    (made,) = (compiled_cache / "ddptrace").glob(f"{compiled._name()}-*.so")
    compiler = script(tmp_path / "compiler", f"install -m 777 {made}")
    cache, before = tmp_path / "new" / "cache", os.umask(0)
    try:
        done = compile_in(tmp_path, compiler, XDG_CACHE_HOME=str(cache))
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    library = cache / "ddptrace" / made.name
    assert done.stdout.startswith(f"{library}\n") and list(library.parent.iterdir()) == [library]
    for path in (cache.parent, cache, library.parent, library):
        assert oct(path.stat().st_mode & 0o777) == "0o700", path


def test_compile_removes_what_was_planted_and_its_check_imports_nothing_from_the_current_directory(
    library: Path, compiler: Path, tmp_path: Path
) -> None:
    library.chmod(0o666)
    mark = plant(tmp_path / "planted")
    done = compile_in(mark.parent, compiler)
    assert "does not work with torch" in done.stderr and "buckets sent" in done.stderr
    assert list(library.parent.iterdir()) == []
    assert not mark.exists() and not (mark.parent / MARK).exists()


def test_a_relative_cache_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG base directory specification has it: it would be another in each directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert compiled.cache_folder() == tmp_path / ".cache" / "ddptrace"


CHROOT = """
import os, sys
from pathlib import Path
from ddptrace.capture.collectives.compiled import checked_folder
os.chroot(sys.argv[1])
print(checked_folder(Path("/home/ddptrace")))
"""


@only_root
def test_whoever_owns_the_root_directory_may_own_parents_and_not_the_folder(tmp_path: Path) -> None:
    """In a container whose users are numbered otherwise, what root owns outside belongs to nobody inside."""
    root, program = tmp_path / "root", tmp_path / "program.py"
    program.write_text(CHROOT)
    folder = root / "home" / "ddptrace"
    for each in (root, folder.parent, folder):
        each.mkdir(mode=0o700)
    for each in (root, folder.parent):
        os.chown(each, STRANGER, STRANGER)
    in_chroot = functools.partial(server().run, [str(program), str(root)], 1, environment(), timeout_s=60)
    assert in_chroot() == (True, "/home/ddptrace\n")
    os.chown(folder, STRANGER, STRANGER)
    is_well, said = in_chroot()
    assert not is_well and f"{CompileError.__name__}: /home/ddptrace belongs to another user (uid {STRANGER})" in said
