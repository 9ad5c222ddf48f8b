"""What a run is called, and which program it was: what is given, what is found, and that both come to the analysis."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.capture.claim import command, commit, describe_job, describe_program
from ddptrace.errors import TraceStateError
from ddptrace.trace_options import TEXT_MAX, Labels, labels_of


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ((None, None, None), Labels()),
        (("gpt", ["a", "b"], "why"), Labels("gpt", ("a", "b"), "why")),
        (("x" * 2 * TEXT_MAX, (), "\udc80"), Labels("x" * TEXT_MAX, (), "?")),
    ],
)
def test_labels_are_texts_of_a_bounded_length(given: tuple[Any, Any, Any], labels: Labels) -> None:
    assert labels_of(*given) == labels


@pytest.mark.parametrize(
    ("given", "why"), [((1, None, None), "name=1"), ((None, "a", None), "a list"), ((None, [1], None), "tags has 1")]
)
def test_anything_else_is_refused(given: tuple[Any, Any, Any], why: str) -> None:
    with pytest.raises(TraceStateError, match=why):
        labels_of(*given)


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_JOB_ID": "42", "TORCHELASTIC_RUN_ID": "rdzv"}, {"scheduler": "slurm", "job_id": "42"}),
        ({"TORCHELASTIC_RUN_ID": "rdzv"}, {"scheduler": "torchelastic", "job_id": "rdzv"}),
        ({"TORCHELASTIC_RUN_ID": "none"}, {}),
        ({"TORCHELASTIC_RUN_ID": "82d6c30a-3a26-47bd-bc7c-359dbd31e01c"}, {}),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "gpt-master-0"}, {"pod": "gpt-master-0"}),
        ({"HOSTNAME": "laptop"}, {}),
    ],
)
def test_the_job_is_that_of_the_outermost_scheduler(
    environ: dict[str, str], found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", environ)
    assert describe_job() == found


def test_the_commit_is_what_git_says(tmp_path: Path) -> None:
    def git(*words: str, cwd: Path = tmp_path / "repo") -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *who, *words], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "repo" / "inner").mkdir(parents=True)
    git("init", "--quiet", "--initial-branch=main")
    assert commit(tmp_path / "repo") is None
    git("commit", "--allow-empty", "--quiet", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert commit(tmp_path / "repo" / "inner") == head
    git("worktree", "add", "--quiet", str(tmp_path / "tree"))
    assert commit(tmp_path / "tree") == head
    git("pack-refs", "--all")
    assert commit(tmp_path / "repo") == commit(tmp_path / "tree") == head
    git("checkout", "--quiet", "--detach")
    assert commit(tmp_path / "repo") == head


@pytest.mark.parametrize("text", ["", "ref: refs/heads/none", "ref: ../../etc/passwd", "\0", "gitdir: /nowhere"])
def test_a_damaged_repository_has_no_commit(text: str, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(text)
    assert commit(tmp_path) is None


def test_a_program_without_arguments_or_directory_is_described_by_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(sys, "orig_argv", [None])
    monkeypatch.setattr(sys, "argv", [""])
    assert describe_program() == {}


def test_a_long_command_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", "x" * 5_000])
    assert command() == ["python", "…"]


def test_what_a_run_is_called_comes_to_its_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setenv("SLURM_JOB_ID", "42")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with ddptrace.trace(tmp_path / "run", name="gpt", tags=["a", "b"], notes="why"):
        for _ in range(3):
            parameter.sum().backward()
            optimizer.step()
    about = ddptrace.analyze(tmp_path / "run").about
    assert (about.name, about.tags, about.notes) == ("gpt", ("a", "b"), "why")
    assert (about.scheduler, about.job_id, about.torch) == ("slurm", "42", torch.__version__)
    assert about.command == tuple(command()) != ()
