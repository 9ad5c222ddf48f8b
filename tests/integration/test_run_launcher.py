"""`python -m ddptrace.run`: the program sees, prints and ends as under plain Python, and is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import ddptrace
from ddptrace.load.run import read_run
from ddptrace.load.tables import Run
from tests.launch import PROGRAMS, ROOT, environment, server, torchrun
from tests.self_launched import NO_LAUNCHER

PLAIN = [sys.executable]
UNDER_RUN = [sys.executable, "-m", "ddptrace.run"]
NOTHING = "ddptrace.run: nothing was recorded, because the program did not import torch\n"
DDP = str(PROGRAMS / "run_ddp.py")
STEPS = 3


def start(*command: object, cwd: Path = PROGRAMS) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*map(str, command)], cwd=cwd, env=environment(), stdout=pipe, stderr=pipe, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def recorded(
    out: Path,
    *args: object,
    ranks: int = 1,
    launcher: dict[str, str | None] = NO_LAUNCHER,
    options: tuple[str, ...] = (),
) -> tuple[list[int], str]:
    """Run DDP under `ddptrace.run` as forked ranks, which have imported torch; their exit codes and what is on stderr.
    `launcher`: replaces variables of torchrun, for ranks that it starts."""
    argv = ["-m", "ddptrace.run", "--out", str(out), *options, DDP, *map(str, args)]
    with server().started(argv, ranks, environment(), to_the_end=True, torchrun=launcher) as job:
        statuses = job.statuses(timeout_s=120)
    assert statuses is not None, job.said
    return [os.waitstatus_to_exitcode(status) for status in statuses if status is not None], job.stderr


def of_job(name: str, restart: int = 0) -> dict[str, str | None]:
    """What torchrun tells every rank of one job."""
    return {"TORCHELASTIC_RUN_ID": name, "TORCHELASTIC_RESTART_COUNT": str(restart)}


def codes(run: Run) -> set[str]:
    return {finding.code for finding in run.findings}


@pytest.mark.parametrize("program", [("run_mirror.py",), ("-m", "run_mirror"), ("../programs/./run_mirror.py",)])
def test_a_program_sees_of_itself_what_it_sees_under_plain_python(program: tuple[str, ...]) -> None:
    arguments = (*program, "a", "--out", "b", "-m", "--", "--help")
    cwd = PROGRAMS.parent / "unit" if program[0].startswith("..") else PROGRAMS
    plain, under_run = (ended(start(*command, *arguments, cwd=cwd)) for command in (PLAIN, UNDER_RUN))
    assert plain[0] == 0, plain
    assert '"heavy": []' in plain[1]
    assert under_run == (plain[0], plain[1], plain[2] + NOTHING)


def test_a_package_and_a_folder_are_run_as_under_plain_python(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print(sys.argv)")
    (package / "__main__.py").write_text("import sys; print(__name__, __package__, __spec__.name, sys.argv, sys.path)")
    for program in (("-m", "pkg", "a"), ("pkg", "a")):
        plain = ended(start(*PLAIN, *program, cwd=tmp_path))
        assert plain[0] == 0, plain
        assert ended(start(*UNDER_RUN, *program, cwd=tmp_path))[:2] == plain[:2]


@pytest.mark.parametrize(
    "how", ["return", "exit", "sentence", "raise", "chained", "interrupt", "own-hook", "os-exit", "sigterm"]
)
def test_a_program_ends_with_the_same_code_and_traceback(how: str) -> None:
    plain, under_run = (start(*command, "run_ends.py", how) for command in (PLAIN, UNDER_RUN))
    code, out, err = ended(plain)
    assert (code, out) != (0, "") and ended(under_run) in ((code, out, err), (code, out, err + NOTHING))


def test_a_script_with_a_syntax_error_is_told_as_plain_python_tells_it(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("x = (\n")
    code, out, err = ended(start(*PLAIN, "wrong.py", cwd=tmp_path))
    assert code == 1 and ended(start(*UNDER_RUN, "wrong.py", cwd=tmp_path)) == (code, out, err + NOTHING)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("absent.py",), "cannot run "),
        (("-m", "absent.module"), "there is no module absent.module to run"),
        (("--profile", "x", "run_ends.py"), "--profile is 'x'"),
        (("-m", "torch.distributed.run", "run_ends.py"), "is a launcher, which starts the ranks"),
        (("/usr/bin/torchrun", "run_ends.py"), "is a launcher, which starts the ranks"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(command: tuple[str, ...], said: str) -> None:
    code, out, err = ended(start(*UNDER_RUN, *command))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ddptrace.run: ") and said in err


def test_however_a_program_ends_what_it_did_is_recorded_and_closed_where_python_gets_the_chance(
    tmp_path: Path,
) -> None:
    expected = {"return": (0, True), "destroyed": (0, True), "raise": (1, True), "exit": (7, True),
                "os-exit": (9, False), "sigterm": (-15, False), "forks": (0, True)}  # fmt: skip
    for how, (code, clean) in expected.items():
        assert recorded(tmp_path / how, how)[0] == [code]
        (rank,) = read_run(tmp_path / how).ranks
        assert (how, len(rank.steps), sum(call.is_native for call in rank.calls)) == (how, STEPS, STEPS)
        assert (how, rank.clean) == (how, clean)


def test_a_trace_of_the_programs_own_has_the_word_and_ours_says_where_it_went(tmp_path: Path) -> None:
    ends = [recorded(tmp_path / name, "own", tmp_path / own) for name, own in (("ours", "its"), ("same", "same"))]
    assert [code for code, _ in ends] == [[0], [0]], ends
    ours, its, same = (read_run(tmp_path / name) for name in ("ours", "its", "same"))
    assert [len(one.ranks[0].steps) for one in (ours, its, same)] == [STEPS, STEPS + 1, STEPS + 1]
    assert "gave-way" in codes(ours) and "gave-way" not in codes(its) | codes(same)
    sentence = f"the program itself entered ddptrace.trace({tmp_path / 'its'}): this recording ends there"
    assert [sentence in err for _, err in ends] == [True, False]


def test_a_taken_directory_is_refused_on_every_rank_in_one_sentence(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / "run" / f"rank-0000{rank}").mkdir(parents=True)
    statuses, err = recorded(tmp_path / "run", "return", ranks=2, launcher={})
    assert (statuses, err.count("\n")) == ([2, 2], 2)
    assert all("already holds a run" in line and "--overwrite" in line for line in err.splitlines())


def test_plain_ddp_under_torchrun_gives_the_tables_that_the_context_manager_gives(tmp_path: Path) -> None:
    torchrun("../../examples/3_unchanged_script.py", tmp_path / "context")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = ("--out", tmp_path / "run", "--profile", "5,1,3")
    process = start(*launcher, "-m", "ddptrace.run", *options, ROOT / "examples" / "plain_ddp.py")
    code, out, err = ended(process)
    assert code == 0, err
    assert out.startswith("epoch 1")
    with_context, without = (ddptrace.analyze(tmp_path / name) for name in ("context", "run"))
    assert shape(without) == shape(with_context)
    pids = {int(rank.pid) for rank in read_run(tmp_path / "run").ranks}
    assert len(pids) == 2 and process.pid not in pids


def shape(result: ddptrace.Result) -> dict[str, object]:
    """What does not depend on time."""
    return {
        "steps": Counter((step.rank, step.step, step.evidence) for step in result.steps),
        "buckets": Counter((b.rank, b.step, b.layout, b.index, b.nbytes) for b in result.buckets),
        "collectives": Counter((c.rank, c.op, c.nbytes) for c in result.collectives),
        "phases": Counter((p.rank, p.phase) for p in result.phases),
    }


def test_a_job_that_torchrun_restarts_gives_attempts_that_are_each_analyzed(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    restarts = ("--max-restarts=2", "--monitor-interval=0.1")
    process = start(
        *launcher, *restarts, "-m", "ddptrace.run", "--out", tmp_path / "run", DDP, "restarted", tmp_path / "meeting"
    )
    code, _, err = ended(process)
    assert code == 0, err
    last, first, second = (read_run(tmp_path / name) for name in ("run", "run/attempt-0", "run/attempt-1"))
    assert [len(rank.steps) for rank in last.ranks] == [2 * STEPS + 1] * 2 == [len(r.steps) for r in second.ranks]
    assert [len(rank.steps) for rank in first.ranks] == [STEPS] * 2
    (told,) = (finding.message for finding in last.findings if finding.code == "restarted")
    assert told == f"the job was restarted: this is attempt 1; analyze {tmp_path / 'run' / 'attempt-0'} for the others"
    assert [one.manifest["attempt"] for one in (first, second)] == [0, 1]
    assert len({one.manifest["job"] for one in (first, second)}) == 1


def test_an_attempt_that_came_to_no_step_does_not_hide_the_one_before(tmp_path: Path) -> None:
    for restart, how in enumerate(("return", "absent-way")):
        assert recorded(tmp_path / "run", how, launcher=of_job("one", restart))[0] == [0]
    attempt = tmp_path / "run" / "attempt-1"
    for records in attempt.glob("rank-*/records-*.bin"):
        records.write_bytes(b"")
    last = read_run(tmp_path / "run")
    assert len(last.ranks[0].steps) == STEPS
    (told,) = (finding.message for finding in last.findings if finding.code == "restarted")
    assert told.endswith(f"attempt 0, the last one that came to a step; analyze {attempt} for the others")


def test_workers_that_grow_in_number_without_a_counted_restart_give_an_attempt_of_their_own(tmp_path: Path) -> None:
    for ranks in (1, 2):
        assert recorded(tmp_path / "run", "destroyed", ranks=ranks, launcher=of_job("one"))[0] == [0] * ranks
    first, second = (read_run(tmp_path / "run" / f"attempt-{number}") for number in range(2))
    assert [len(one.ranks) for one in (first, second)] == [1, 2]
    assert [one.world_size for one in (first, second)] == [1, 2]
    assert "other-run" not in codes(second)


def test_a_restart_does_not_join_the_run_of_another_job(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", "destroyed", launcher=of_job("one"))[0] == [0]
    another = of_job("another", restart=1)
    code, err = recorded(tmp_path / "run", "destroyed", launcher=another)
    assert code == [2] and "already holds a run (manifest.json)" in err
    assert not (tmp_path / "run" / "attempt-1").exists()
    assert recorded(tmp_path / "run", "destroyed", launcher=another, options=("--overwrite",))[0] == [0]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["attempt-1"]


def test_where_the_record_cannot_begin_for_whatever_reason_one_line_says_so_and_the_program_runs(
    tmp_path: Path,
) -> None:
    (tmp_path / "sabotaged.py").write_text(
        "import sys; sys.modules['ddptrace.capture.claim'] = None\nimport torch; print('went on', torch.ones(1).item())"
    )
    code, out, err = ended(start(*UNDER_RUN, "--out", tmp_path / "run", "sabotaged.py", cwd=tmp_path))
    assert (code, out, err.count("\n")) == (0, "went on 1.0\n", 1), err
    assert err.startswith(f"ddptrace.run: cannot record into {tmp_path / 'run'}: ModuleNotFoundError: ")
