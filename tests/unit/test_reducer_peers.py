"""Two ranks at one real store, in one process: what one of them does between two operations of the other; and a store
that is slow because it serves many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ddptrace.errors import DdptraceError
from ddptrace.reducer import peers
from ddptrace.reducer.peers import Peers
from ddptrace.reducer.sender import FIRST_FORWARD, HookAgreement

CPU = torch.device("cpu")


class Clients:
    """One server, and for each rank a client of its own."""

    def __init__(self) -> None:
        self.server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)

    def client(self) -> dist.TCPStore:
        return dist.TCPStore("127.0.0.1", self.server.port, None, False, timedelta(seconds=20), wait_for_workers=False)


@pytest.fixture
def clients() -> Clients:
    return Clients()


class Watched:
    """A store that counts its operations, takes `latency_s` for each, and calls `after` behind it."""

    def __init__(self, store: Any, latency_s: Callable[[str], float] = lambda name: 0) -> None:
        self._store, self._latency_s = store, latency_s
        self.operations: list[str] = []
        self.after: Callable[[str, Any], None] = lambda name, asked: None

    def __getattr__(self, name: str) -> Any:
        def operation(*asked: Any) -> Any:
            self.operations.append(name)
            time.sleep(self._latency_s(name))
            answer = getattr(self._store, name)(*asked)
            self.after(name, asked)
            return answer

        return operation


def made(monkeypatch: pytest.MonkeyPatch, store: Any, rank: int, size: int, timeout_s: float) -> Peers:
    group: Any = SimpleNamespace(rank=lambda: rank, size=lambda: size, group_name="group")
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: list(range(size)))
    monkeypatch.setattr(peers, "_get_default_store", lambda: store)
    return Peers(group, CPU, timeout_s)


def watched(peers: Peers, latency_s: Callable[[str], float] = lambda name: 0) -> Watched:
    """Put between the peers and their store."""
    seen: Any = Watched(peers._store.store, latency_s)
    peers._store.store = seen
    return seen  # type: ignore[no-any-return]


def test_a_rank_that_ends_its_wait_while_another_looks_does_not_block_the_others_store(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look's `check` that rank 1 waits somewhere and the look's reading of where, that wait ends."""
    client = clients.client()
    looking = made(monkeypatch, client, 0, 2, timeout_s=0.5)
    waiting = made(monkeypatch, clients.client(), 1, 2, timeout_s=20)
    meeting = threading.Thread(target=waiting.meet, args=("place", "", "the place"))
    meeting.start()
    client.wait(["ddptrace/reducer/group/1/waits/1"])
    while client.get("ddptrace/reducer/group/1/waits/1") != b"the place":
        time.sleep(0.05)

    def wait_ends(name: str, asked: Any) -> None:
        if name == "check" and "waits/1" in asked[0]:
            client.set("ddptrace/reducer/group/1/place/0", "")
            meeting.join()

    watched(looking).after = wait_ends
    with pytest.raises(DdptraceError, match="another rank did not come to it"):
        looking.result(torch.futures.Future(), "a bucket")
    begin = time.monotonic()
    client.set("key", "")
    assert time.monotonic() - begin < 5, "the client answered only after its own timeout of 20 s"


CUT = "[/somewhere/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234. Check the logs."


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CUT, f"the connection to another rank broke: it may have ended, see its output. The backend: {CUT}"),
        ("[/gloo/pair.cc:1] Read error: Connection reset by peer", "the connection to another rank broke"),
        ("writev: Broken pipe", "the connection to another rank broke"),
        ("[/gloo/pair.cc:2] op.preamble.length <= op.nbytes. 40 vs 20", "it failed: [/gloo/pair.cc:2] op.preamble"),
    ],
)
def test_where_a_connection_broke_that_is_said_before_the_backends_own_line(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, error: str, said: str
) -> None:
    failed: torch.futures.Future[object] = torch.futures.Future()
    failed.set_exception(RuntimeError(f"{error}\nException raised from somewhere in C++"))
    with pytest.raises(DdptraceError) as told:
        made(monkeypatch, clients.client(), 0, 2, timeout_s=5).result(failed, "bucket 3")
    assert str(told.value).startswith(f"Rank 0 waited for bucket 3, and {said}")
    assert "C++" not in str(told.value)


def test_a_meeting_of_many_ranks_asks_a_slow_store_a_few_times(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text for each of 64 ranks, 0.05 s for each operation: one by one they would take 3.2 s, and an answer has 2."""
    client = clients.client()
    peers = made(monkeypatch, client, 0, 64, timeout_s=5)
    for rank in range(1, 64):
        client.set(f"ddptrace/reducer/group/1/place/{rank}", str(rank))
    store = watched(peers, lambda name: 0.05)
    assert peers.meet("place", "0", "the place") == [str(rank) for rank in range(64)]
    assert len(store.operations) < 6


def test_an_answer_that_comes_late_is_taken_and_not_asked_for_again(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading takes 2.5 s where 2 were given: asked again each time, it would never end."""
    peers = made(monkeypatch, clients.client(), 0, 1, timeout_s=8)
    store = watched(peers, lambda name: 2.5 if name in ("get", "multi_get") else 0)
    assert peers.meet("place", "here", "the place") == ["here"]
    assert sum(name in ("get", "multi_get") for name in store.operations) == 1


def test_a_rank_missing_among_many_is_named_though_the_store_is_slow(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 0.02 s for an operation, 64 ranks asked for one by one would take 1.3 s, and the last look has one."""
    client = clients.client()
    peers = made(monkeypatch, client, 0, 64, timeout_s=2)
    for rank in set(range(1, 64)) - {41}:
        client.set(f"ddptrace/reducer/group/1/place/{rank}", "")
    watched(peers, lambda name: 0.02)
    with pytest.raises(DdptraceError, match=r"^Rank 41 did not come to the place within 2 s"):
        peers.meet("place", "", "the place")


def test_of_many_missing_ranks_a_few_are_named(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = made(monkeypatch, clients.client(), 0, 64, timeout_s=1)
    with pytest.raises(DdptraceError, match=r"^Rank 1, 2, 3, 4, 5 and others did not come to the place"):
        peers.meet("place", "", "the place")


def test_where_another_rank_waits_is_said_until_it_waits_no_more(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = clients.client()
    looking = made(monkeypatch, client, 0, 2, timeout_s=0.5)
    waiting = made(monkeypatch, clients.client(), 1, 2, timeout_s=0.5)
    with pytest.raises(DdptraceError, match="Rank 0 did not come to the place"):
        waiting.meet("place", "", "the place")
    with pytest.raises(DdptraceError, match="for rank 1 waits for the place"):
        looking.result(torch.futures.Future(), "a bucket")
    looking.tell("waits/1", "")
    with pytest.raises(DdptraceError, match="another rank did not come to it;"):
        looking.result(torch.futures.Future(), "a bucket")


def test_a_rank_that_met_in_this_model_s_first_forward_and_went_on_to_the_next_is_in_no_other_model(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN two models; this rank, 1, waits in the first forward of the first, and rank 0 is in that of the second
    first, _ = (made(monkeypatch, clients.client(), 1, 2, 5) for _ in range(2))
    agreement, store = HookAgreement(first), first.shared.store
    agreement._is_first = True
    store.set("first/2", "0")
    assert "rank 0 is in number 2 and rank 1 in number 1" in agreement._another_model(store)
    # WHEN rank 0 turns out to have come to the first one before
    store.set(f"1/{FIRST_FORWARD}/0", "")
    # THEN
    assert agreement._another_model(store) == ""
