"""Exports the ranks of one run on one host, as `ddptrace export RUN --follow` does, until the first of them has left
its trace or died."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ddptrace.errors import DdptraceError
from ddptrace.live.run_folders import rank_folders, read_identity
from ddptrace.live.run_follower import RunFollower
from ddptrace.telemetry.companion.companion import GRACE_S, Training
from ddptrace.telemetry.delivery import reports
from ddptrace.telemetry.delivery.delivery import Patience, Say
from ddptrace.telemetry.delivery.exports import Following, scraped
from ddptrace.telemetry.delivery.reports import complaint, success
from ddptrace.telemetry.delivery.targets import Targets, targets_of_environment
from ddptrace.telemetry.environment import METRICS_EVERY_S, metrics_every_s

if TYPE_CHECKING:
    from ddptrace.telemetry.metrics.prometheus import Server

COUNTING_S: Final = 10.0
"""Time to count what was not delivered, after the last attempt."""
LONGEST_S: Final = GRACE_S + COUNTING_S + 30.0
"""The longest that the companion lives after the training has left; one attempt may still be under way."""
ASK_EVERY_S: Final = 0.2
SCRAPED_S: Final = 70.0
"""How long a finished run waits for its last scrape: Prometheus scrapes once a minute unless told otherwise."""
PORT_FREE_S: Final = SCRAPED_S + 10.0
"""How long to try for the port of Prometheus: the companion of an earlier trace may still hold it."""


class Work:
    def __init__(self, root: Path, host: str, inode: int, training: Training, say: Say) -> None:
        self._root = root
        self._host = host
        self._inode = inode
        self._training = training
        self._say = say
        self._stop = threading.Event()
        self._following: Following | None = None
        self._is_cut = False  # there was no time to count everything not delivered

    def do(self, *, is_first: bool) -> str | None:
        """Export until the end, and return a sentence about what was not delivered."""
        targets = targets_of_environment(os.environ)
        run_id = self._awaited_run(is_first)
        if run_id is None:
            return None
        patience = Patience(GRACE_S, ended=self._training.left.is_set, stop=self._stop)
        self._following = following = Following(
            self._root,
            targets,
            patience,
            self._tell,
            host=self._host,
            run_id=run_id,
            metrics_every_s=metrics_every_s(os.environ) if targets.metrics else METRICS_EVERY_S,
        )
        self._training.tell(done=False, trouble=None)
        following.start(lambda follower: self._is_over(follower, run_id), self._stop)
        with contextlib.ExitStack() as served:
            server, unserved = self._serve(served, following, targets)
            self._wait(following)
            trouble = "; ".join(filter(None, (unserved, self._report(following, run_id)))) or None
            self._training.tell(done=True, trouble=trouble)
            if server is not None:
                self._training.left.wait()
                server.wait_for_scrape(SCRAPED_S)  # of the last numbers
        return trouble

    def _tell(self, sentence: str) -> None:
        self._say(sentence)
        every = [] if self._following is None else self._following.deliveries
        bad = [f"{delivery.destination.name}: {delivery.why}" for delivery in every if delivery.is_in_trouble]
        self._training.tell(done=False, trouble=bad[0] if bad else None)

    def _awaited_run(self, is_first: bool) -> str | None:
        """Wait for the run that the training records, and return its id. None if another process exports it. Raises
        DdptraceError if its directory is gone."""
        while True:
            is_left = self._training.left.is_set()
            for found in rank_folders(self._root):
                identity = read_identity(found.folder, final=is_left) if found.inode[1] == self._inode else None
                if identity is not None:
                    return identity.run_id if is_first or identity.rank == 0 else None
            if is_left:
                raise DdptraceError(self._displaced())
            time.sleep(ASK_EVERY_S)

    def _is_over(self, follower: RunFollower, run_id: str) -> bool:
        """Whether all records of this host's ranks were read, or time is up."""
        mine = [now for now in follower.now() if now.identity.run_id == run_id]
        is_whole = bool(mine) and not follower.is_behind and all(now.closed or now.gone for now in mine)
        is_late = time.monotonic() > self._training.left_at_s + GRACE_S + COUNTING_S
        self._is_cut |= is_late and not is_whole
        return is_whole or is_late

    def _serve(
        self, served: contextlib.ExitStack, following: Following, targets: Targets
    ) -> tuple[Server | None, str | None]:
        """Serve Prometheus. Return the server, and why that failed; None for what there is not."""
        until = time.monotonic() + PORT_FREE_S
        while targets.prometheus is not None:
            try:
                server = served.enter_context(scraped(following.totals, targets.prometheus))
                assert server is not None
                self._say(f"serving {server.url}")
                return server, None
            except DdptraceError as error:
                if time.monotonic() > until or self._training.left.is_set():
                    self._say(str(error))
                    return None, str(error)
                time.sleep(1.0)
        return None, None

    def _wait(self, following: Following) -> None:
        while not following.wait(ASK_EVERY_S):
            if time.monotonic() > self._training.left_at_s + LONGEST_S:
                return

    def _report(self, following: Following, run_id: str) -> str | None:
        if following.error is not None:
            raise following.error
        is_done = following.is_done()
        if not is_done:
            following.give_up()
        for sentence in success(following.deliveries):
            self._say(sentence)
        displaced = self._displaced() if following.has_removed(run_id) else None
        undelivered = complaint(following.deliveries, self._root, is_counted=is_done and not self._is_cut)
        trouble = "; ".join(filter(None, (displaced, undelivered, reports.of_unplaced(self._root)))) or None
        if trouble is not None:
            self._say(trouble)
        return trouble

    def _displaced(self) -> str:
        return (
            f"the run directory {self._root} was moved, replaced or removed, and the part that had not been read "
            "was not exported; `ddptrace export` with its present path delivers the rest"
        )
