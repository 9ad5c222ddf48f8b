"""A rank's claim on the run directory: its folder, and what rank 0 has to say about the whole."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddptrace.capture import identity
from ddptrace.errors import RunDirectoryError
from ddptrace.findings import NO_META, NO_RANK, REFUSED, FindingKind
from ddptrace.record import directory
from ddptrace.schema import SCHEMA_VERSION

_numbers = itertools.count()

Note = Callable[[FindingKind, str], None]


class Claim:
    """The folder that this rank writes, from the moment the trace is entered.

    Raises RunDirectoryError, on every rank, where rank 0 or this one finds the directory taken, or it cannot be made;
    OSError where the disk is full. `rank` is None until somebody has said it.
    """

    def __init__(self, path: Path, *, overwrite: bool, facts: dict[str, Any], traceparent: str | None = None) -> None:
        self.rank = identity.current_rank()
        self._job = identity.job()
        self._attempt, self.root = directory.attempt_root(
            path, identity.attempt(), self._job, judges=self.rank in (0, None), overwrite=overwrite
        )
        self._world_size: int | None = None
        self.run_id = uuid.uuid4().hex
        self.zero_unix_ns = time.time_ns()
        self.facts = facts  # what the manifest says of the trace itself
        self._traceparent = traceparent
        self._overwrite = overwrite
        self._agreement = identity.Agreement(next(_numbers))
        self._agreed = False
        self.folder = self._claim()

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
            word = self._take(self._agreement.learn(wait=True))
            if word is not None:
                folder.rmdir()
                raise RunDirectoryError(word)
        if refused is not None:
            raise refused
        return folder

    def _take(self, answer: dict[str, Any] | None) -> str | None:
        """Go by what rank 0 said, if it has; why it refuses the directory, if it does."""
        if answer is None:
            return None
        self._agreed = True
        self.run_id = answer["run_id"]
        return answer["refused"] or None

    def agree(self, note: Note) -> None:
        """Agree with rank 0, where there was nothing to agree through at the start. Tried now and then, not waiting."""
        before = self._agreed
        if self.rank == 0:
            self._agreed = self._agreement.publish(self.run_id, None)  # also where there is another store by now
        elif not before:
            refused = self._take(self._agreement.learn(wait=False))
            if refused is not None:
                note(REFUSED, refused)
        if self._agreed and not before:
            self.write_meta(note)

    def settle(self, note: Note, *, final: bool = False) -> None:
        """Name a folder that was claimed without a rank, once it is known; in the end without any it is rank 0."""
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
        """The largest world counts: of several, and also where it is gone in the end."""
        self._world_size = max(identity.current_world_size() or 0, self._world_size or 0) or None

    def write_meta(self, note: Note) -> None:
        """Write what is known by now of this rank, and if it is rank 0 of the run."""
        self._see_world()
        world = self._world_size or (1 if self.rank == 0 else None)
        common = {"schema": SCHEMA_VERSION, "run_id": self.run_id, "world_size": world, "job": self._job}
        try:
            directory.write_meta(self.folder, common | identity.describe_process(self.rank) | self._said_span())
            if self.rank == 0:
                directory.write_manifest(self.root, common | self._manifest())
                if self._overwrite and world is not None:
                    directory.remove_strangers(self.root, world)
        except OSError as error:
            note(NO_META, f"meta.json could not be written: {error.strerror}")

    def _said_span(self) -> dict[str, str]:
        return {} if self._traceparent is None else {"traceparent": self._traceparent}

    def _manifest(self) -> dict[str, Any]:
        return {
            "zero_unix_ns": self.zero_unix_ns,
            "attempt": self._attempt,
            "versions": identity.describe_versions(),
        } | self.facts
