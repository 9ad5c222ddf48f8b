"""Buckets that compiled code records: what holds of the records holds of these, whatever the program does."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ddptrace.capture.collectives.bucket_sends import EACH
from ddptrace.capture.collectives.compiled import compile_library, library_path
from ddptrace.errors import CompileError
from ddptrace.load.run import read_run
from ddptrace.load.run_folder import records_of
from ddptrace.load.tables import Call
from ddptrace.record import Records
from ddptrace.schema import EVENT_DTYPE
from tests.launch import PROGRAMS, environment, server, torchrun
from tests.programs.compiled_ways import LAYERS, LONG_STEPS, STEPS
from tests.self_launched import self_launched

FIRST = 1
"""Buckets of a first backward: torch makes one for each layer after it."""
BY_PYTHON = 3
"""Backwards: that one, the next, before torch tells of its new buckets, and that in which these are learned."""


@pytest.fixture(autouse=True)
def use_compiled(compiled_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiled_cache))


def trained(way: str, run: Path) -> int:
    """How many buckets compiled code took."""
    said = re.findall(r"taken (\d+)", torchrun("compiled_ways.py", way, run, ranks=1))
    assert len(said) == 1
    return int(said[0])


def buckets(run: Path) -> list[Call]:
    """In the order in which they were sent."""
    (rank,) = read_run(run).ranks
    calls = sorted((call for call in rank.calls if call.reducer is not None), key=lambda call: call.launch_at_ns)
    assert [call.seq for call in calls] == sorted(call.seq for call in calls)
    assert all(call.is_native and call.op == "all_reduce" and call.error is None for call in calls)
    return calls


def records(run: Path) -> Records:
    found = records_of(run / "rank-00000")
    assert not found.damaged and not found.torn
    return found


@pytest.mark.parametrize("way", ["plain", "same", "accumulating", "forked", "sampled", "symbolic"])
def test_all_but_the_learned_are_recorded_by_it_with_their_ends(way: str, tmp_path: Path) -> None:
    """Also where steps are left out, a child is forked, gradients are accumulated, or a tensor is sent that has only a
    shape."""
    taken, calls = trained(way, tmp_path / "run"), buckets(tmp_path / "run")
    by_python = BY_PYTHON - (way == "accumulating")  # torch is asked at each backward, those without buckets as well
    assert len(calls) == FIRST + (STEPS - 1) * LAYERS and taken == (STEPS - by_python) * LAYERS
    assert all(call.launch_at_ns < call.issued_at_ns and call.done_at_ns is not None for call in calls)
    assert len({call.nbytes_in for call in calls}) == 2 and records(tmp_path / "run").closed


def test_backwards_that_send_nothing_take_no_room(tmp_path: Path) -> None:
    trained("accumulating", tmp_path / "run")
    (file,) = (tmp_path / "run" / "rank-00000").glob("records-*.bin")
    slots = np.fromfile(file, EVENT_DTYPE)
    assert (slots["guard"] == 0).sum() <= EACH * (LAYERS + 1)  # of buckets that were learned anew


def test_a_trace_after_another_learns_anew(tmp_path: Path) -> None:
    taken, calls = trained("again", tmp_path / "run"), buckets(tmp_path / "run")
    assert len(calls) == STEPS * LAYERS and taken == 2 * (STEPS - 1) * LAYERS


def test_of_two_reducers_python_records_all(tmp_path: Path) -> None:
    assert trained("two", tmp_path / "run") == 0
    assert len(buckets(tmp_path / "run")) == 2 * (FIRST + (STEPS - 1) * LAYERS)


def test_what_the_program_sends_of_the_same_memory_is_no_bucket(tmp_path: Path) -> None:
    """One is taken for a bucket, until that comes; from then on Python tells them apart."""
    assert trained("fooled", tmp_path / "run") > 0
    (rank,) = read_run(tmp_path / "run").ranks
    found = Counter((call.origin, call.is_native) for call in rank.calls if call.op == "all_reduce")
    assert found == {("gradients", True): 2 * STEPS, ("program", False): STEPS}


def test_after_ddp_is_gone_nothing_is_its_bucket(tmp_path: Path) -> None:
    assert trained("dropped", tmp_path / "run") == (STEPS - BY_PYTHON) * LAYERS
    (rank,) = read_run(tmp_path / "run").ranks
    found = Counter((call.origin, call.site is None) for call in rank.calls if call.op == "all_reduce")
    assert found == {("gradients", True): FIRST + (STEPS - 1) * LAYERS, ("program", False): STEPS * LAYERS}


def test_of_two_threads_each_bucket_is_in_its_group(tmp_path: Path) -> None:
    assert trained("threads", tmp_path / "run") == 0
    (rank,) = read_run(tmp_path / "run").ranks
    groups = Counter(call.group for call in rank.calls if call.is_native)
    assert len(groups) == 2 and set(groups.values()) == {FIRST + (LONG_STEPS - 1) * LAYERS}


def test_what_was_sent_before_the_process_was_killed_is_there(tmp_path: Path) -> None:
    argv = [str(PROGRAMS / "compiled_ways.py"), "killed", str(tmp_path / "run")]
    statuses, said = server().statuses(argv, 1, environment(), 60, to_the_end=True)
    assert statuses == [signal.SIGKILL], said
    assert len(buckets(tmp_path / "run")) == FIRST + (STEPS - 1) * LAYERS - 1
    assert not records(tmp_path / "run").closed


def test_files_that_end_amid_backwards_are_whole(tmp_path: Path) -> None:
    taken, found = trained("rolling", tmp_path / "run"), records(tmp_path / "run")
    calls, sent = buckets(tmp_path / "run"), FIRST + (LONG_STEPS - 1) * LAYERS
    assert sent / 2 < taken < sent and found.closed
    assert sent - found.dropped <= len(calls) <= sent
    assert sum(call.done_at_ns is None for call in calls) <= found.dropped


def test_a_bucket_that_failed_since_a_peer_died_is_told_with_its_error(tmp_path: Path) -> None:
    done = self_launched("peer_death.py", tmp_path, "ddp")
    assert done.stdout.split() == ["told", "True", "0", str(-signal.SIGKILL)], done.said
    (failed,) = (call for call in read_run(tmp_path / "run").ranks[0].calls if call.error)
    assert failed.reducer is not None and "onnection" in failed.error and ".cc:" not in failed.error


def test_what_cannot_be_loaded_leaves_a_note_and_all_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = library_path()
    assert made is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    size = made.stat().st_size
    broken = tmp_path / "cache" / "ddptrace" / made.name
    for folder in (broken.parent.parent, broken.parent):
        folder.mkdir(mode=0o700)
    broken.write_bytes(b"no library".ljust(size))
    broken.chmod(0o600)
    assert library_path() == broken and trained("plain", tmp_path / "run") == 0
    assert len(buckets(tmp_path / "run")) == FIRST + (STEPS - 1) * LAYERS
    (note,) = (one for one in read_run(tmp_path / "run").findings if one.code == "compiled-failed")
    assert "`ddptrace compile`" in note.message and "run it again" in note.message


def test_a_part_of_a_library_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading it would end the process."""
    made = library_path()
    assert made is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ddptrace").mkdir()
    (tmp_path / "ddptrace" / made.name).write_bytes(made.read_bytes()[: made.stat().st_size // 2])
    assert library_path() is None


def test_without_a_home_nothing_was_compiled_and_nothing_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", _no_home)
    assert library_path() is None
    with pytest.raises(CompileError, match=r"no home directory .*: set XDG_CACHE_HOME"):
        compile_library()


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


EMPTY = """#!/bin/sh
until [ "$1" = -o ]; do shift; done
exec g++ -shared -fPIC -x c++ /dev/null -o "$2"
"""


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("/no/such/compiler", "/no/such/compiler cannot be run (No such file"),
        ("false", "does not compile with torch"),
        ("empty", "does not work with torch"),
    ],
)
def test_a_compiler_that_cannot_is_told_in_one_sentence(
    compiler: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`empty` makes a library with nothing in it: what does not work is not left for trainings to find."""
    empty = tmp_path / "empty"
    empty.write_text(EMPTY)
    empty.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(empty) if compiler == "empty" else compiler)
    with server().started(["-m", "ddptrace", "compile"], 1, environment(), to_the_end=True) as job:
        (status,) = job.statuses(60) or [None]
    assert status is not None and os.waitstatus_to_exitcode(status) == 1, job.said
    assert job.stdout == "" and said in job.stderr and len(job.stderr.splitlines()) == 1
    assert list((tmp_path / "ddptrace").iterdir()) == []
