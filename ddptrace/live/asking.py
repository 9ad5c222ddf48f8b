"""Asks a running job for a profiler window, by a file in its run directory, and waits for the answer of a rank."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ddptrace.errors import RunDirectoryError
from ddptrace.live.run_folders import newest_attempt
from ddptrace.load.diagnosis.job import read_job
from ddptrace.record.directory import read_json, write_json
from ddptrace.schema import MANIFEST, PROFILE_ANSWER, PROFILE_REQUEST

ANSWER_S: Final = 60.0
"""Ranks look for the file every 2 s; some hosts may see it half a minute late."""
LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Promised:
    """Steps `first` to `last` that `confirmed` of `ranks` ranks are going to profile."""

    first: int
    last: int
    ranks: int
    confirmed: int


def ask_for_window(path: Path, steps: int) -> Promised:
    """Ask the job that records into `path` for a window of `steps` steps, and return which steps it promises.

    Raises RunDirectoryError if no job runs there, refuses, or answers in time.
    """
    root = newest_attempt(path)
    run_id = (read_json(root / MANIFEST) or {}).get("run_id")
    if run_id is None:
        raise RunDirectoryError(f"{path} holds no run; give the directory that ddptrace.trace writes to")
    if all(rank.closed or rank.alive is False for rank in read_job(path).ranks):
        raise RunDirectoryError(f"the job that recorded {path} has ended; ask while it runs")
    request = secrets.token_hex(8)
    with _asked(root, {"request": request, "run_id": run_id, "steps": steps}):
        answer = _answer(root, request)
    if answer is None:
        raise RunDirectoryError(
            f"no rank of {path} has answered within {ANSWER_S:.0f} s;"
            f" see with `ddptrace diagnose {path}` whether it trains"
        )
    if "refused" in answer:
        raise RunDirectoryError(f"the job in {path} opens no window: {answer['refused']}")
    return Promised(*(int(answer[name]) for name in ("first", "last", "ranks", "confirmed")))


@contextmanager
def _asked(root: Path, content: dict[str, Any]) -> Iterator[None]:
    """Let the request stand meanwhile."""
    write_json(root / PROFILE_REQUEST, content)
    try:
        yield
    finally:
        for name in (PROFILE_REQUEST, PROFILE_ANSWER):
            (root / name).unlink(missing_ok=True)


def _answer(root: Path, request: str) -> dict[str, Any] | None:
    until = time.monotonic() + ANSWER_S
    while time.monotonic() < until:
        answer = read_json(root / PROFILE_ANSWER)
        if answer is not None and answer.get("request") == request:
            return answer
        time.sleep(LOOK_S)
    return None
