"""A folder that anybody may have filled: what is no regular file is not opened, what is too large is not read."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptrace.record.directory import open_regular, read_regular


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path)


def nothing(path: Path) -> None:
    pass


def memory(path: Path) -> None:
    """It says that it is a regular file, and reading it fails."""
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("make", [fifo, folder, a_socket, endless, loop, nothing, memory])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_an_error_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match=r"\[Errno") as caught, open_regular(tmp_path / "file") as file:
        file.read(1)
    assert caught.value.strerror


def test_a_file_is_read_whole_up_to_its_limit_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100)
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 100) == b"x" * 100
    with pytest.raises(OSError, match="too large"):
        read_regular(tmp_path / "link", 99)


def test_a_hole_that_costs_no_disk_costs_no_memory_either(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.truncate(tmp_path / "file", 1 << 40)
    with pytest.raises(OSError, match="too large"):
        read_regular(tmp_path / "file", 1 << 30)


def test_what_the_system_makes_up_while_it_is_read_is_nothing(tmp_path: Path) -> None:
    """Its length is 0, and some of it never ends."""
    (tmp_path / "file").symlink_to("/proc/self/smaps")
    assert read_regular(tmp_path / "file", 100) == b""
