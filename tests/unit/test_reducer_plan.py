"""Which gradients share a bucket: against torch's own arithmetic, and where ours is meant to differ from it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as some

from ddptrace.errors import DdptraceError
from ddptrace.reducer.bucket import MIB, bucket_caps, plan_buckets

SIZES = some.lists(some.integers(1, 400), min_size=1, max_size=40)
CAPS = some.lists(some.integers(1, 2000), min_size=1, max_size=4)


def torchs(numels: list[int], kinds: list[torch.dtype], caps: list[int], order: list[int]) -> list[list[int]]:
    """torch's buckets for tensors that become ready in `order`."""
    tensors = [torch.empty(numels[index], dtype=kinds[index], device="meta") for index in order]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, caps, [False] * len(tensors), order)
    return [list(bucket) for bucket in buckets]


def ours(numels: list[int], kinds: list[torch.dtype], caps: list[int], order: list[int]) -> list[list[int]]:
    nbytes = [numel * kind.itemsize for numel, kind in zip(numels, kinds, strict=True)]
    return plan_buckets(order, nbytes, kinds, caps)


@given(SIZES, CAPS, some.randoms())
def test_buckets_of_one_dtype_are_torchs_in_torchs_order(numels: list[int], caps: list[int], random: object) -> None:
    order = list(range(len(numels)))
    random.shuffle(order)  # type: ignore[attr-defined] # hypothesis gives a random.Random
    kinds = [torch.float32] * len(numels)
    assert ours(numels, kinds, caps, order) == torchs(numels, kinds, caps, order)


@given(SIZES, CAPS, some.data())
def test_buckets_of_several_dtypes_are_torchs_in_the_order_of_their_last_gradient(
    numels: list[int], caps: list[int], data: some.DataObject
) -> None:
    dtypes = some.sampled_from([torch.float32, torch.float16, torch.float64])
    kinds = [data.draw(dtypes) for _ in numels]
    order = list(range(len(numels)))[::-1]
    buckets = ours(numels, kinds, caps, order)
    assert sorted(buckets) == sorted(torchs(numels, kinds, caps, order))
    ends = [order.index(bucket[-1]) for bucket in buckets]
    assert ends == sorted(ends), "a bucket that is ready later would hold up one that is ready"


def test_the_first_bucket_is_small_and_made_of_the_last_parameters() -> None:
    # GIVEN four parameters of 1 MiB each
    caps = bucket_caps(bucket_cap_mb=2, first_bucket_mb=1)
    # WHEN they become ready from the last to the first
    assert plan_buckets([3, 2, 1, 0], [MIB] * 4, ["float32"] * 4, caps) == [[3], [2, 1], [0]]


def test_explicit_caps_are_taken_one_after_another_and_the_last_one_repeats() -> None:
    caps = bucket_caps(25, 1, [1, 3, 2])
    assert plan_buckets(range(10), [MIB] * 10, [0] * 10, caps) == [[0], [1, 2, 3], [4, 5], [6, 7], [8, 9]]


def test_the_first_cap_is_never_larger_than_the_others() -> None:
    assert bucket_caps(0.5, 1) == [MIB // 2, MIB // 2]


def test_a_cap_without_end_makes_one_bucket() -> None:
    assert plan_buckets(range(3), [2**33] * 3, [0] * 3, bucket_caps(float("inf"), float("inf"))) == [[0, 1, 2]]


@pytest.mark.parametrize("caps", [[], [0], [1, -1], [float("nan")]])
def test_caps_that_are_none_are_refused(caps: list[float]) -> None:
    with pytest.raises(DdptraceError, match="above zero"):
        bucket_caps(25, 1, caps)
