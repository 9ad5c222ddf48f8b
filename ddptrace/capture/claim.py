"""A rank's claim on the run directory: its folder, the agreement with rank 0, and what meta.json and the manifest say
of the program and its job.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ddptrace.capture import identity
from ddptrace.errors import RunDirectoryError
from ddptrace.findings import NO_META, NO_RANK, REFUSED, FindingKind
from ddptrace.record import directory
from ddptrace.schema import SCHEMA_VERSION

SCHEDULERS: Final = {
    "slurm": "SLURM_JOB_ID",
    "pbs": "PBS_JOBID",
    "lsf": "LSB_JOBID",
    "torchelastic": "TORCHELASTIC_RUN_ID",
}
"""Variables that hold the number or name of a job, by who sets them, the outermost first."""
COMMAND_MAX: Final = 4_000
GIT_FILE_NBYTES_MAX: Final = 4 << 20
MADE_UP: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""A UUID, which torchrun makes up for a job on one node."""
COMMIT: Final = re.compile(r"[0-9a-f]{40,64}")

_numbers = itertools.count()

Note = Callable[[FindingKind, str], None]


class Claim:
    """The folder that this rank writes, from the moment the trace is entered.

    Raises RunDirectoryError, on every rank, if rank 0 or this rank finds the directory taken or cannot make it; OSError
    if the disk is full. `rank` is None until it is known.
    """

    def __init__(
        self,
        path: Path,
        *,
        overwrite: bool,
        facts: dict[str, Any],
        about: dict[str, Any],
        traceparent: str | None = None,
    ) -> None:
        self.rank = identity.current_rank()
        self._job = identity.job()
        self._attempt, self.root = directory.attempt_root(
            path, identity.attempt(), self._job, judges=self.rank in (0, None), overwrite=overwrite
        )
        self._world_size: int | None = None
        self.run_id = uuid.uuid4().hex
        self.zero_unix_ns = time.time_ns()
        self.facts = facts  # about the trace and the program, for the manifest
        self._about = about  # the run's name and job, for every rank
        self._traceparent = traceparent
        self._overwrite = overwrite
        self._agreement = identity.Agreement(next(_numbers))
        self._agreed = False
        self.folder = self._claim()

    @property
    def key(self) -> str:
        """The begin of this trace's keys in the stores that ranks share."""
        return self._agreement.key

    def _claim(self) -> Path:
        refused: RunDirectoryError | None = None
        folder = self.root
        try:
            folder = directory.claim(self.root, self.rank, overwrite=self._overwrite)
        except RunDirectoryError as error:
            refused = error
        if self.rank == 0:
            self._agreed = self._agreement.publish(self.run_id, str(refused) if refused else None)
        elif refused is None:
            refusal = self._take(self._agreement.learn(wait=True))
            if refusal is not None:
                folder.rmdir()
                raise RunDirectoryError(refusal)
        if refused is not None:
            raise refused
        return folder

    def _take(self, answer: dict[str, Any] | None) -> str | None:
        """Follow the answer of rank 0, if there is one. Return why rank 0 refuses the directory, None if it does
        not."""
        if answer is None:
            return None
        self._agreed = True
        self.run_id = answer["run_id"]
        return answer["refused"] or None

    def agree(self, note: Note) -> None:
        """Agree with rank 0 if there was no store at the start. Called now and then; does not wait."""
        before = self._agreed
        if self.rank == 0:
            self._agreed = self._agreement.publish(self.run_id, None)  # there may be another store by now
        elif not before:
            refused = self._take(self._agreement.learn(wait=False))
            if refused is not None:
                note(REFUSED, refused)
        if self._agreed and not before:
            self.write_meta(note)

    def settle(self, note: Note, *, final: bool = False) -> None:
        """Name a folder that was claimed without a rank, once the rank is known; if it never is, it is rank 0."""
        self._see_world()
        rank = identity.current_rank()
        if self.rank is not None or (rank is None and not final):
            if final:
                self.write_meta(note)  # now what it computed on is known
            return
        try:
            self.folder = directory.settle(self.folder, rank or 0, overwrite=self._overwrite)
            self.rank = rank or 0
            self.write_meta(note)
        except (RunDirectoryError, OSError) as error:
            note(NO_RANK, str(error))

    def _see_world(self) -> None:
        """Keep the largest world size: there may be several worlds, and none is left at the end."""
        self._world_size = max(identity.current_world_size() or 0, self._world_size or 0) or None

    def write_meta(self, note: Note) -> None:
        """Write what is known of this rank, and on rank 0 what is known of the run."""
        self._see_world()
        world = self._world_size or (1 if self.rank == 0 else None)
        common = {"schema": SCHEMA_VERSION, "run_id": self.run_id, "world_size": world, "job": self._job}
        common |= self._about
        try:
            directory.write_meta(self.folder, common | identity.describe_process(self.rank) | self._active_span())
            if self.rank == 0:
                directory.write_manifest(self.root, common | self._manifest())
                if self._overwrite and world is not None:
                    directory.remove_strangers(self.root, world)
        except OSError as error:
            note(NO_META, f"meta.json could not be written: {error.strerror}")

    def _active_span(self) -> dict[str, str]:
        return {} if self._traceparent is None else {"traceparent": self._traceparent}

    def _manifest(self) -> dict[str, Any]:
        return {
            "zero_unix_ns": self.zero_unix_ns,
            "attempt": self._attempt,
            "versions": identity.describe_versions(),
        } | self.facts


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
            return {"scheduler": scheduler, "job_id": job} | _pod_facts()
    return _pod_facts()


def _pod_facts() -> dict[str, str]:
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
        return file.read(GIT_FILE_NBYTES_MAX).decode()
