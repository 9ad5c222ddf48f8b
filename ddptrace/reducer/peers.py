"""The other ranks: word passed through the store, and waits that end in a sentence instead of never.

A collective says nothing while a peer does not come. So a rank that fails leaves a note in the group's store under the
number of its forward, and a rank that waits looks there once a second:

    rank 0   forward 7 | backward, bucket 0 sent | waiting . . . . looks . . . . . . . "rank 1 said: ..."
    rank 1   forward 7 raises -> note under 7 . . . . . .  ^
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import zlib
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import Future
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from ddptrace.errors import DdptraceError
from ddptrace.reducer.misuse import DROPS_DIFFER

SLICE_S = 1.0


def sentence_of(error: Exception) -> str:
    """What the other ranks are told of an error: our sentences as they are, others with their type."""
    return str(error) if isinstance(error, DdptraceError) else f"{type(error).__name__}: {error}"


class Peers:
    """The ranks of one process group, for one reducer. `timeout_s` bounds every wait that happens on the host."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self.ranks = dist.get_process_group_ranks(group)
        self.me = self.ranks[self.rank]  # as sentences name ranks: by their numbers among all
        self.forward = 0  # number of the forward that this rank is in
        self.dropping = 0  # checksum of what it drops in it, 0 nothing
        self._agreed_key = ""
        self._timeout_s = timeout_s
        self._on_host = device.type == "cpu"  # elsewhere a wait is the stream's, and the backend's watchdog bounds it
        store = PrefixStore(f"ddptrace/reducer/{group.group_name}", _get_default_store())
        number = store.add(f"made/{self.rank}", 1)  # all ranks make their reducers in the same order
        self.number = int(number)  # of the reducer, among those over this group
        self._store = PrefixStore(str(number), store)

    def say(self, sentence: str, *, since: int | None = None) -> None:
        """Leave a note for those who wait in this forward, or in one since `since`. Never raises."""
        with contextlib.suppress(RuntimeError):
            for forward in range(self.forward if since is None else since, self.forward + 1):
                self._store.set(f"failed/{forward}", f"rank {self.me} said: {sentence}")

    def agree_to_drop(self, indices: Iterable[int]) -> None:
        """Return when all ranks leave the same parameters out of this backward; at once where this one leaves out none.

        To be called before a bucket is sent: a backend may end the process where ranks send different ones. Raises
        DdptraceError where ranks differ: here on one that drops, in its wait for a bucket on one that does not.
        """
        dropped = sorted(indices)
        self.dropping = zlib.crc32(repr(dropped).encode()) if dropped else 0
        if not dropped:
            return
        self._store.set(self._dropping_key(self.rank), str(self.dropping))
        keys, begin = [self._dropping_key(rank) for rank in range(self.size)], time.monotonic()
        while not self._are_set(keys):
            self._look("what the ranks drop", begin)
        self._refuse_other_drops()
        if self._agreed_key:
            self._store.delete_key(self._agreed_key)  # all are past it
        self._agreed_key = self._dropping_key(self.rank)

    def gather(self, kind: str, mine: object) -> list[object]:
        """What every rank has to say under `kind`, by rank; JSON. Raises DdptraceError, naming who did not come."""
        self._store.set(f"{kind}/{self.rank}", json.dumps(mine))
        keys = [f"{kind}/{rank}" for rank in range(self.size)]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout_s))
            return [json.loads(self._store.get(key)) for key in keys]
        except RuntimeError as error:
            raise DdptraceError(
                f"{self._absent(keys)} did not come to {kind} within {self._timeout_s:g} s, and rank {self.me} did: "
                "all ranks must make the same models and use them alike."
            ) from error

    def gather_from_first(self, kind: str, mine: object) -> object:
        """What rank 0 has to say under `kind`; JSON. Raises DdptraceError when it does not come."""
        if self.rank == 0:
            self._store.set(kind, json.dumps(mine))
        try:
            self._store.wait([kind], timedelta(seconds=self._timeout_s))
            return json.loads(self._store.get(kind))
        except RuntimeError as error:
            raise DdptraceError(
                f"Rank {self.ranks[0]} did not come to {kind} within {self._timeout_s:g} s, and rank {self.me} did."
            ) from error

    def wait(self, work: dist.Work, what: str) -> None:
        """Wait for a collective. Raises DdptraceError when it fails, a peer leaves a note, or time is up."""
        if not self._on_host:
            work.wait()
            return
        begin = time.monotonic()
        while not self._is_over(work, what):
            self._look(what, begin)

    def result(self, future: Future[object], what: str) -> object:
        """Wait for a future and return its value. Raises as `wait` does."""
        if not future.done():
            done, begin = threading.Event(), time.monotonic()
            future.add_done_callback(lambda _: done.set())
            while not done.wait(SLICE_S):
                self._look(what, begin)
        try:
            return future.wait()
        except Exception as error:
            raise self._failed(what, error) from error

    def _is_over(self, work: dist.Work, what: str) -> bool:
        try:
            work.wait(timedelta(seconds=SLICE_S))
        except RuntimeError:  # the slice is over, or the work has failed
            if not work.is_completed():
                return False
            try:
                work.wait()
            except RuntimeError as error:
                raise self._failed(what, error) from error
        return True

    def _look(self, what: str, begin: float) -> None:
        waited_s = time.monotonic() - begin
        note = self._note()
        if note:
            raise DdptraceError(f"Rank {self.me} waited for {what}, and {note}")
        self._refuse_other_drops()
        if waited_s > self._timeout_s:
            raise DdptraceError(
                f"Rank {self.me} waited {waited_s:.0f} s for {what} and gave up: another rank did not come "
                "to it; see what it last did: it may have left its loop, failed, or skipped a backward."
            )

    def _failed(self, what: str, error: Exception) -> DdptraceError:
        note = self._note() or f"it failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        return DdptraceError(f"Rank {self.me} waited for {what}, and {note} (a rank may have ended: see its output).")

    def _note(self) -> str:
        try:
            key = f"failed/{self.forward}"
            return self._store.get(key).decode() if self._store.check([key]) else ""
        except RuntimeError:  # the store lived in a process that is gone
            return "the process that holds the store is gone."

    def _dropping_key(self, rank: int) -> str:
        return f"dropping/{self.forward}/{rank}"

    def _are_set(self, keys: list[str]) -> bool:
        try:
            self._store.wait(keys, timedelta(seconds=SLICE_S))
        except RuntimeError:
            return False
        return True

    def _refuse_other_drops(self) -> None:
        """Raises DdptraceError where a rank is known to drop other layers in this forward than this one."""
        for key in map(self._dropping_key, range(self.size)):
            if self._store.check([key]) and int(self._store.get(key)) != self.dropping:
                raise DdptraceError(DROPS_DIFFER)

    def _absent(self, keys: list[str]) -> str:
        try:
            absent = [str(rank) for rank, key in zip(self.ranks, keys, strict=True) if not self._store.check([key])]
        except RuntimeError:
            absent = []
        return f"Rank {', '.join(absent)}" if absent else "Some rank"
