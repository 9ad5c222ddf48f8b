"""Two ranks in different steps look, at the same moment, what the other said: both learn it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch.distributed as dist

from ddptrace.reducer.notes import Look
from ddptrace.reducer.peers import Peers
from ddptrace.reducer.same_training import BackwardAgreement


class Interrupted(dist.HashStore):
    """Between an answer and what is done with it, `meanwhile` happens, once."""

    meanwhile: Callable[[], object] | None = None

    def get(self, key: str) -> bytes:
        answer = super().get(key)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        return bytes(answer)


def look_of(rank: int, forward: int, store: dist.Store) -> Look:
    """Of a rank that is in its backward 1, after this forward; it asks the others where there was one too many."""
    peers = SimpleNamespace(
        me=rank, forward=1, looks=[], tell=store.set, meet=lambda *_, **__: ["2 1 0"], own_key=lambda kind: kind
    )
    agreement = BackwardAgreement(cast(Peers, peers))
    agreement.agree(0, ())
    peers.forward = forward
    peers.meet = lambda *_, **__: []  # where a rank looks meanwhile
    agreement.agree(1, ())
    agreement.is_plain = True  # as it is meanwhile
    return cast(Look, peers.looks[0])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_rank_that_waits_does_not_wipe_out_what_another_says_at_that_moment(at_once: bool) -> None:
    # GIVEN rank 1 ran one forward more than rank 0, and asks
    store = Interrupted()
    behind, ahead = look_of(0, 2, store), look_of(1, 3, store)
    told: list[str] = []
    if at_once:
        # WHEN rank 0 sees it, and says where it is itself, while rank 1 looks
        store.meanwhile = lambda: told.append(behind(store))
        assert ahead(store) == ""
    else:
        told.append(behind(store))
    # THEN rank 1 learns it all the same
    assert "rank 0 in 2" in told[0]
    assert "rank 1 in 3" in ahead(store)
