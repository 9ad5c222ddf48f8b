"""Whose folder is whose in a run directory that is overwritten."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from ddptrace.errors import RunDirectoryError
from ddptrace.record import directory


def folder_of(root: Path, name: str, *, pid: int, before: bool) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"host": socket.gethostname(), "pid": pid}))
    if before:
        os.utime(folder, (1, 1))
    return folder


ANOTHER = os.getpid() + 1


@pytest.mark.parametrize(
    ("pid", "before", "stays"),
    [(ANOTHER, False, True), (ANOTHER, True, False), (os.getpid(), False, False)],
    ids=["another-now", "another-before", "our-own"],  # a name that is the same in every process
)
def test_a_rank_beyond_the_known_world_stays_only_where_another_process_may_be_writing_it(
    tmp_path: Path, pid: int, before: bool, stays: bool
) -> None:
    folder = folder_of(tmp_path, "rank-00002", pid=pid, before=before)
    directory.remove_strangers(tmp_path, 2)
    assert folder.exists() is stays


def test_a_folder_that_learns_its_rank_late_does_not_replace_one_that_another_process_may_be_writing(
    tmp_path: Path,
) -> None:
    pending = folder_of(tmp_path, "rank-pending-7", pid=os.getpid(), before=False)
    living = folder_of(tmp_path, "rank-00000", pid=ANOTHER, before=False)
    with pytest.raises(RunDirectoryError, match="already holds a run"):
        directory.settle(pending, 0, overwrite=True)
    assert pending.exists() and (living / "meta.json").exists()
    os.utime(living, (1, 1))
    assert directory.settle(pending, 0, overwrite=True) == living
    assert not pending.exists()


@pytest.mark.parametrize("hosts", [("node-a", "node-b"), ("node", "node")])
def test_processes_of_two_hosts_with_one_number_do_not_remove_each_others_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, str]
) -> None:
    folders = []
    for host in hosts:  # of two containers, even the names may be the same
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        folder = directory.claim(tmp_path, None, overwrite=True)
        (folder / "records-00000.bin").touch()
        folders.append(folder)
    assert all((folder / "records-00000.bin").exists() for folder in folders)
    assert [folder.name.startswith(f"rank-pending-{host}-") for folder, host in zip(folders, hosts, strict=True)]
    assert sorted(tmp_path.glob(f"{directory.PENDING}*")) == sorted(folders)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_overwriting_removes_folders_that_never_learned_their_rank_if_they_are_older_than_this_process(
    tmp_path: Path, has_manifest: bool
) -> None:
    old = folder_of(tmp_path, "rank-pending-1", pid=1, before=True)
    new = folder_of(tmp_path, "rank-pending-2", pid=2, before=False)
    if has_manifest:
        directory.write_manifest(tmp_path, {})
    directory.claim(tmp_path, 0, overwrite=True)
    assert (old.exists(), new.exists()) == (False, True)


def test_overwriting_where_no_run_lies_leaves_a_folder_called_analysis_alone(tmp_path: Path) -> None:
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "thesis.txt").write_text("mine")
    directory.claim(tmp_path, 0, overwrite=True)
    assert (tmp_path / "analysis" / "thesis.txt").read_text() == "mine"
    (tmp_path / "manifest.json").write_text("{}")
    directory.claim(tmp_path, 0, overwrite=True)
    assert not (tmp_path / "analysis").exists()
