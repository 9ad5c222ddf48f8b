"""Ranks as processes, and the folder that a benchmark holds: which reason is told, and who may go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddptrace.bench import launch
from ddptrace.bench.conduct import held
from ddptrace.bench.launch import RANKS_A_CORE, refuse_too_many, run_ranks
from ddptrace.errors import DdptraceError

FAILS = (
    "from ddptrace.bench.launch import end_failed; from ddptrace.errors import DdptraceError; import os, sys, time; "
)


def failing(folder: Path, program: str) -> str:
    with pytest.raises(DdptraceError) as raised:
        run_ranks(2, [sys.executable, "-c", program], folder)
    return str(raised.value)


def test_a_rank_that_fails_ends_the_others_and_its_own_words_are_told(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        f"open(r'{tmp_path}/' + os.environ['RANK'] + '.pid', 'w').write(str(os.getpid()))\n"
        "if os.environ['RANK'] == '0': time.sleep(60)\n"
        f"while not os.path.exists(r'{tmp_path}/0.pid'): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "print('[rank1]: ddptrace.errors.DdptraceError: a sentence', file=sys.stderr)\n"
        "print('[rank1]:[W1121 12:00:00.000 ProcessGroup.cpp:1] a warning of torch', file=sys.stderr)\n"
        "sys.exit(1)"
    )
    begin = time.monotonic()
    said = failing(tmp_path, program)
    assert time.monotonic() - begin < 30
    assert said == f"rank 1 of 2 failed: a sentence (its output: {tmp_path / 'rank-1.log'})"
    other = int((tmp_path / "0.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)


def test_a_rank_that_is_killed_without_a_word_is_told(tmp_path: Path) -> None:
    assert "it may have been killed" in failing(tmp_path, "import os; os.kill(os.getpid(), 9)")


def test_why_a_rank_failed_is_told_although_the_disk_of_its_log_is_full(tmp_path: Path) -> None:
    full = "os.dup2(os.open('/dev/full', os.O_WRONLY), 2); "
    said = failing(
        tmp_path, FAILS + full + "time.sleep(9 - 9 * int(os.environ['RANK'])); end_failed(OSError(28, 'Full'))"
    )
    assert said.startswith("rank 1 of 2 failed: OSError: [Errno 28] Full (its output:")
    assert (tmp_path / "rank-1.log").read_bytes() == b""


def test_why_a_rank_failed_stands_in_its_log_as_well(tmp_path: Path) -> None:
    failing(tmp_path, FAILS + "end_failed(OSError(28, 'Full'))")
    assert "OSError: [Errno 28] Full" in (tmp_path / "rank-0.log").read_text() + (tmp_path / "rank-1.log").read_text()


def test_of_two_ranks_that_failed_at_nearly_the_same_time_the_first_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN that both are over when they are looked at, rank 1 long before rank 0
    monkeypatch.setattr(launch, "POLL_S", 5)
    program = FAILS + "time.sleep(2 - 2 * int(os.environ['RANK'])); end_failed(DdptraceError(os.environ['RANK']))"
    assert failing(tmp_path, program).startswith("rank 1 of 2 failed: 1 (its output")


def test_a_rank_that_was_killed_is_the_reason_and_not_the_one_that_misses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "POLL_S", 5)
    program = FAILS + "os.environ['RANK'] == '1' and os.kill(os.getpid(), 9); end_failed(RuntimeError('peer is gone'))"
    assert failing(tmp_path, program).startswith("rank 1 of 2 failed: no output, it may have been killed")


def test_so_many_ranks_as_cores_can_take_turns_for_and_no_more() -> None:
    most = RANKS_A_CORE * len(os.sched_getaffinity(0))
    refuse_too_many(most)
    with pytest.raises(DdptraceError, match=rf"give --ranks {most} or fewer"):
        refuse_too_many(most + 1)


def test_a_folder_is_held_once_and_let_go_of_afterwards(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(DdptraceError, match="another benchmark writes into"), held(tmp_path):
        pass
    with held(tmp_path):
        pass


def test_a_holder_that_was_killed_lets_go_of_its_folder(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from ddptrace.bench.conduct import held\n"
        "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(DdptraceError), held(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
    with held(tmp_path):
        pass
