"""What an RPC message weighs, and the stamp behind its payload."""

from __future__ import annotations

import pickle

import pytest
import torch

from ddptrace.capture.rpc.messages import (
    STAMP_NBYTES,
    Stamp,
    gradient_nbytes,
    read_stamp,
    stamped,
    tensors_in,
    wire_nbytes,
)
from ddptrace.schema import RpcOp

N = 8192


@pytest.mark.parametrize(
    ("tensors", "nbytes"),
    [
        ([], 0),
        ([torch.ones(N)], 4 * N),
        ([torch.ones(N), torch.ones(3)], 4 * N + 12),
        ([torch.ones(N)[: N * 3 // 4]], 4 * N),  # the whole storage goes
        ([torch.ones(N)[: N // 2]], 2 * N),  # half of a large one is copied out
        ([torch.ones(1000)[:10]], 4000),  # of a small one never
        ([torch.ones(1).expand(N)], 4),
        ([torch.ones(N, dtype=torch.bfloat16)], 2 * N),
        ([torch.sparse_coo_tensor(torch.tensor([[1, 5]]), torch.ones(2), (N,), check_invariants=True)], 2 * 8 + 2 * 4),
    ],
)
def test_bytes_are_those_of_the_storages_that_are_sent(tensors: list[torch.Tensor], nbytes: int) -> None:
    assert wire_nbytes(tensors) == nbytes


def test_a_storage_that_two_tensors_share_is_sent_once() -> None:
    whole = torch.ones(N)
    assert wire_nbytes([whole, whole[: N * 3 // 4], whole.view(2, -1)]) == 4 * N
    assert wire_nbytes([whole, whole[:10]]) == 4 * N + 40  # its copy has a storage of its own


@pytest.mark.parametrize("later", [True, False])
@pytest.mark.parametrize("op", [RpcOp.RPC_SYNC, RpcOp.REMOTE])
def test_a_stamp_is_read_back_and_a_pickle_never_meets_it(op: RpcOp, later: bool) -> None:
    stamp, payload = Stamp(3 << 48 | 77, op, later), pickle.dumps({"any": [1, 2]})
    sent = stamped(payload, stamp)
    assert (len(sent) - len(payload), read_stamp(sent)) == (STAMP_NBYTES, stamp)
    assert pickle.loads(sent) == {"any": [1, 2]}


@pytest.mark.parametrize("payload", [b"", b"short", pickle.dumps("x" * 100)])
def test_what_an_untraced_worker_sent_has_no_stamp(payload: bytes) -> None:
    assert read_stamp(payload) is None


def test_tensors_are_found_at_any_depth_and_only_those_that_want_a_gradient_have_one() -> None:
    wants, not_wants = torch.ones(3, requires_grad=True), torch.ones(5)
    found = list(tensors_in(([wants, {"a": (not_wants,)}], 7, "text")))
    assert found[0] is wants and found[1] is not_wants and len(found) == 2
    assert gradient_nbytes(found) == 12


def test_a_stamp_of_an_op_that_is_not_known_here_is_none() -> None:
    payload = pickle.dumps(1)
    assert read_stamp(stamped(payload, Stamp(7, 9, False))) is None  # type: ignore[arg-type]
    assert read_stamp(stamped(payload, Stamp(7, RpcOp.REMOTE, False))) is not None
