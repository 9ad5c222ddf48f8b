"""What was started: the command, the commit of its source, and the job of the cluster's scheduler."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

SCHEDULERS: Final = {
    "slurm": "SLURM_JOB_ID",
    "pbs": "PBS_JOBID",
    "lsf": "LSB_JOBID",
    "torchelastic": "TORCHELASTIC_RUN_ID",
}
"""Variables that hold the number or name of a job, by who sets them, the outermost first."""
COMMAND_MAX: Final = 4_000
GIT_FILE_MAX: Final = 4 << 20
MADE_UP: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID, which torchrun makes up for a job on one node."""
COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")


def describe_program() -> dict[str, Any]:
    """Return what is known of the program, for the manifest. Raises nothing, whatever the program did to its own
    arguments or directory."""
    facts: dict[str, Callable[[], Any]] = {"command": command, "commit": lambda: commit(_folder_of_program())}
    found = {}
    for name, ask in facts.items():
        with contextlib.suppress(Exception):
            found[name] = ask()
    return {name: value for name, value in found.items() if value}


def describe_job() -> dict[str, Any]:
    """Return the scheduler's id of this job, and the pod where this is one."""
    for scheduler, variable in SCHEDULERS.items():
        job = os.environ.get(variable, "")
        if job and job != "none" and not MADE_UP.fullmatch(job):  # "none" is torchrun's word for a job without an id
            return {"scheduler": scheduler, "job_id": job} | _pod()
    return _pod()


def _pod() -> dict[str, str]:
    """In a pod, its name is the host's, unless the pod says otherwise."""
    pod = os.environ.get("POD_NAME") or os.environ.get("HOSTNAME", "")
    return {"pod": pod} if pod and "KUBERNETES_SERVICE_HOST" in os.environ else {}


def command() -> list[str]:
    """Return the words of the command line that started this process, without those that would make it too long."""
    words: list[str] = []
    left = COMMAND_MAX
    for word in sys.orig_argv:
        left -= len(word)
        if left < 0:
            return [*words, "…"]
        words.append(word.encode("utf-8", "replace").decode())
    return words


def _folder_of_program() -> Path:
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] else Path()
    return script.parent.absolute() if script.is_file() else Path.cwd()


def commit(folder: Path) -> str | None:
    """Return the commit that is checked out in the Git repository around `folder`; None without one. Runs no git."""
    try:
        git = next(one / ".git" for one in (folder, *folder.parents) if (one / ".git").exists())
        return _head(git)
    except (OSError, StopIteration, UnicodeDecodeError):
        return None


def _head(git: Path) -> str | None:
    if git.is_file():  # of a worktree or a submodule: it says where the rest is
        git = git.parent / _text(git).removeprefix("gitdir:").strip()
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if COMMIT.fullmatch(head) else None
    ref = head.removeprefix("ref:").strip()
    common = git / _text(git / "commondir").strip() if (git / "commondir").is_file() else git
    if (common / ref).is_file():
        found = _text(common / ref).strip()
        return found if COMMIT.fullmatch(found) else None
    packed = (line.split() for line in _text(common / "packed-refs").splitlines())
    return next((words[0] for words in packed if words[1:] == [ref] and COMMIT.fullmatch(words[0])), None)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(GIT_FILE_MAX).decode()
