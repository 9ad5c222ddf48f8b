"""The other ranks: messages through the store, and waits that end with an error message instead of never.

A collective gives no sign while a peer does not come. So a rank that fails leaves a note in the group's store under the
number of its forward, and a rank that waits looks there once a second:

    rank 0   forward 7 | backward, bucket 0 sent | waiting . . . . looks . . . . . . . "rank 1 said: ..."
    rank 1   forward 7 raises -> note under 7 . . . . . .  ^

`timeout_s` bounds every wait on the host; the last look and `part` may take five seconds more.
"""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import Future
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from ddptrace.errors import DdptraceError
from ddptrace.reducer.misuse import STORE_IS_GONE, STORE_IS_SILENT, did_not_come, gave_up
from ddptrace.reducer.notes import (
    SLICE_S,
    BoundedStore,
    Look,
    Meeting,
    Seen,
    StoreGoneError,
    StoreSilentError,
    Whereabouts,
    are_set,
    hold,
    leave,
    seen,
    waits_key,
    whereabouts,
)

PARTING_S = 2.0
SLICE = timedelta(seconds=SLICE_S)

BROKEN = ("connection", "broken pipe", "pair closure")
"""Words of a backend's error if a peer is gone."""

_made: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()
"""How many reducers over a group all its ranks have made, including those that are gone."""


def sentence_of(error: Exception) -> str:
    """Return the message of an error for other ranks: ours as it is, any other with its type."""
    return str(error) if isinstance(error, DdptraceError) else f"{type(error).__name__}: {error}"


class Peers:
    """The ranks of one process group, for one reducer."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self.ranks = dist.get_process_group_ranks(group)
        self.me = self.ranks[self.rank]  # as sentences name ranks: by their numbers among all
        self.forward = 0  # number of the forward that this rank is in
        self.on_host = device.type == "cpu"  # on a device the stream waits, and the backend's watchdog bounds that
        self.looks: list[Look] = []  # what else a waiting rank looks for
        self._timeout_s = timeout_s
        self._has_parted = False
        self.shared = BoundedStore(PrefixStore(f"ddptrace/reducer/{group.group_name}", _get_default_store()))
        self.number = self._numbered()  # of the reducer, among those over this group
        self._groups: tuple[dist.ProcessGroup, ...] = ()
        self._store = BoundedStore(PrefixStore(str(self.number), self.shared.store))
        self.tell(waits_key(self.me), "")  # so that the keys of all ranks can be read at once

    def made_by_all(self, groups: Iterable[dist.ProcessGroup]) -> None:
        """The reducer is made on every rank. `groups`: all groups that it sends over."""
        self._groups = tuple(groups)
        for group in self._groups:
            _made[group] = _made.get(group, 0) + 1

    @property
    def are_shared(self) -> bool:
        """Whether other reducers send over these groups, or did; the same answer on all ranks."""
        return any(_made[group] > 1 for group in self._groups)

    # Messages --------------------------------------------------------------------------------------------------------

    def say(self, sentence: str, *, since: int | None = None) -> None:
        """Leave a note for ranks that wait in this forward, or in one since `since`. Never raises."""
        forwards = range(self.forward if since is None else since, self.forward + 1)
        with suppress(StoreGoneError, StoreSilentError):
            self._store.ask(lambda store: leave(store, forwards, f"rank {self.me} said: {sentence}"))

    def tell(self, key: str, text: str, *, shared: bool = False) -> None:
        """Leave a text in the store; `shared`: for all reducers over this group. Never raises."""
        with suppress(StoreGoneError, StoreSilentError):
            (self.shared if shared else self._store).ask(lambda store: store.set(key, text))

    def part(self) -> None:
        """Before this rank raises for good, give the others a while to learn why. Never raises.

        A store ends with the process that serves it, and a launcher ends the other ranks soon after the first.
        """
        keys = [f"parted/{rank}" for rank in range(self.size)]

        def parting(store: Store) -> None:
            store.set(keys[self.rank], "")
            are_set(store, keys, PARTING_S)

        if not self._has_parted:
            self._has_parted = True
            with suppress(StoreGoneError, StoreSilentError):
                self._store.ask(parting, PARTING_S)

    def gather(self, kind: str, mine: object, *, forget: Sequence[str] = ()) -> list[object]:
        """Return the value of every rank under `kind`, by rank; JSON. Raises DdptraceError, naming who did not come."""
        return list(map(json.loads, self.meet(kind, json.dumps(mine), kind, forget=forget)))

    def gather_from_first(self, kind: str, mine: object) -> object:
        """Return the value of rank 0 under `kind`; JSON. Raises DdptraceError if it does not come."""
        own = json.dumps(mine) if self.rank == 0 else None
        return json.loads(self._meet(Meeting(self.me, {self.ranks[0]: kind}, own, kind))[0])

    def meet(self, kind: str, mine: str, what: str, *, forget: Sequence[str] = ()) -> list[str]:
        """Return the text of every rank under `kind`, by rank, once all are there. Raises as `wait` does.

        `forget`: keys that this rank set, and that nobody reads any more once all ranks have come here: they are
        removed.
        """
        keys = {number: f"{kind}/{rank}" for rank, number in enumerate(self.ranks)}
        return self._meet(Meeting(self.me, keys, mine, what, forget))

    def own_key(self, kind: str) -> str:
        """Return the key of this rank's text in a meeting."""
        return f"{kind}/{self.rank}"

    def _meet(self, meeting: Meeting) -> list[str]:
        return hold(meeting, self._store, lambda began: self._look(meeting.what, began, meeting.keys))

    def made(self, store: Store, more: int = 0) -> int:
        """Return how many reducers this rank has made over this group. Call it inside a question to `shared`'s
        store."""
        return int(store.add(f"made/{self.rank}", more))

    def _numbered(self) -> int:
        """All ranks make their reducers in the same order."""
        try:
            return self.shared.ask(lambda store: self.made(store, 1), self._timeout_s)
        except (StoreGoneError, StoreSilentError) as error:
            why = STORE_IS_GONE if isinstance(error, StoreGoneError) else STORE_IS_SILENT
            raise DdptraceError(f"Rank {self.me} came to the construction of the model, and {why}") from error

    # Waiting ---------------------------------------------------------------------------------------------------------

    def wait(self, work: dist.Work, what: str) -> None:
        """Wait for a collective. Raises DdptraceError when it fails, a peer leaves a note, or time is up."""
        if not self.on_host:
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
            work.wait(SLICE)
        except RuntimeError:  # the slice is over, or the collective has failed
            # not is_completed(): that keeps the interpreter's lock, for which Gloo's thread may wait within the Work
            if not work.get_future().done():
                return False
            try:
                work.wait()
            except RuntimeError as error:
                raise self._failed(what, error) from error
        return True

    def _look(self, what: str, begin: float, keys: Mapping[int, str] | None = None) -> None:
        """Raise DdptraceError if there is a reason to wait no longer. `keys`: the keys waited for."""
        found = Seen(is_silent=True) if self._store.is_busy else self._seen()
        waited_s = time.monotonic() - begin
        if found.verdict:
            raise DdptraceError(found.verdict)
        if found.note:
            raise DdptraceError(f"Rank {self.me} waited for {what}, and {found.note}")
        if waited_s <= self._timeout_s:
            return
        if found.is_silent:
            raise DdptraceError(f"Rank {self.me} waited {waited_s:.0f} s for {what}, and {STORE_IS_SILENT}")
        others = self._whereabouts(keys or {})
        absent = did_not_come(self.me, others.missing, what, self._timeout_s) if keys else ""
        raise DdptraceError(absent or gave_up(self.me, what, waited_s, others.elsewhere))

    def _failed(self, what: str, error: Exception) -> DdptraceError:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        failed = f"it failed: {reason} (a rank may have ended: see its output)."
        if any(word in reason.lower() for word in BROKEN):
            failed = f"the connection to another rank broke: it may have ended, see its output. The backend: {reason}"
        note = self._seen().note or failed
        return DdptraceError(f"Rank {self.me} waited for {what}, and {note}")

    def _whereabouts(self, keys: Mapping[int, str]) -> Whereabouts:
        with suppress(StoreGoneError, StoreSilentError):
            return self._store.ask(lambda store: whereabouts(store, keys, self.ranks))
        return Whereabouts()

    def _seen(self) -> Seen:
        try:
            return self._store.ask(lambda store: seen(store, self.forward, self.looks))
        except StoreGoneError:
            return Seen(note=STORE_IS_GONE)
        except StoreSilentError:
            return Seen(is_silent=True)
