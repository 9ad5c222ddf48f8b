"""Buckets are planned as DDP and the project's own reducer plan them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddptrace.analysis.whatif.advise import CAPS_MB
from ddptrace.analysis.whatif.answer import USUAL_CAPS_MB
from ddptrace.analysis.whatif.play import caps_nbytes, plan_buckets
from ddptrace.load.tables import Parameter
from ddptrace.reducer.bucket import plan_buckets as reducer_plan

DTYPES = {"float32": 4, "float16": 2}


def parameters(*sizes: int, dtype: str = "float32") -> list[Parameter]:
    return [Parameter(f"p{at}", size // DTYPES[dtype], size, dtype) for at, size in enumerate(sizes)]


def test_a_bucket_is_closed_by_the_gradient_that_reaches_its_cap() -> None:
    assert plan_buckets([3, 2, 1, 0], parameters(40, 40, 40, 40), [80]) == ((3, 2), (1, 0))
    assert plan_buckets([3, 2, 1, 0], parameters(40, 40, 40, 40), [41]) == ((3, 2), (1, 0))
    assert plan_buckets([3, 2, 1, 0], parameters(40, 40, 40, 40), [40]) == ((3,), (2,), (1,), (0,))


def test_the_last_cap_repeats_and_what_is_not_full_is_sent_last() -> None:
    assert plan_buckets([4, 3, 2, 1, 0], parameters(*[40] * 5), [40, 80]) == ((4,), (3, 2), (1, 0))
    assert plan_buckets([4, 3, 2, 1, 0], parameters(*[40] * 5), [1000]) == ((4, 3, 2, 1, 0),)


def test_caps_are_mib() -> None:
    assert caps_nbytes((0.5, 25)) == (524288, 26214400)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.lists(st.integers(4, 1000), min_size=1, max_size=4),
       st.randoms())  # fmt: skip
def test_of_one_dtype_buckets_are_those_of_the_reducer(sizes: list[int], caps: list[int], chance: object) -> None:
    known = parameters(*(4 * size for size in sizes))
    order = list(range(len(sizes)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    ours = plan_buckets(order, known, caps)
    assert [list(bucket) for bucket in ours] == reducer_plan(
        order, [one.nbytes for one in known], ["x"] * len(known), caps
    )


@given(st.lists(st.tuples(st.integers(1, 100), st.sampled_from(sorted(DTYPES))), min_size=1, max_size=30))
def test_no_bucket_holds_two_dtypes_and_none_of_the_parameters_is_lost(kinds: list[tuple[int, str]]) -> None:
    known = [Parameter(f"p{at}", size, size * DTYPES[dtype], dtype) for at, (size, dtype) in enumerate(kinds)]
    buckets = plan_buckets(range(len(known)), known, [100])
    assert sorted(one for bucket in buckets for one in bucket) == list(range(len(known)))
    assert all(len({known[one].dtype for one in bucket}) == 1 for bucket in buckets)


def test_the_advice_compares_every_cap_that_is_asked_by_itself() -> None:
    assert set(USUAL_CAPS_MB) <= set(CAPS_MB)
