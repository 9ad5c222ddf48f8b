"""Runs made by hand, whose truth under any setting is known, are played again and asked what would be otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptrace.analysis.whatif.advise import advise, best_of
from ddptrace.analysis.whatif.answer import answer
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import NEVER, observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Prediction, Setting
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import LinkSample
from ddptrace.predictor import predictor
from tests.unit.made_whatif import MS, Made, in_buckets, made_ranks, step_ns

MB = 1e6 / 2**20
"""In MiB, as DDP's caps are: each parameter of `Made` has 1 MB."""


def recorded(made: Made, size: int) -> Predictor:
    return Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, size))], len(made.late)))


def asked(made: Made, size: int, **setting: object) -> Prediction:
    return recorded(made, size).predict("asked", Setting(**setting))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "made", [Made(), Made(byte_ns=20.0), Made(late=(0, 15 * MS)), Made(backwards=3), Made(finish=9 * MS)]
)
def test_the_recorded_setting_is_replayed(made: Made, size: int) -> None:
    found = recorded(made, size)
    assert found.recorded_ns == pytest.approx(step_ns(made, in_buckets(made, size)))
    assert abs(found.replay_error) < 0.005


@pytest.mark.parametrize("made", [Made(), Made(byte_ns=20.0), Made(late=(0, 15 * MS))])
@pytest.mark.parametrize("before", [1, 8])
@pytest.mark.parametrize("after", [1, 4, 8])
def test_other_buckets_take_what_they_take(made: Made, before: int, after: int) -> None:
    truth = step_ns(made, in_buckets(made, after))
    found = asked(made, before, caps=(after * MB,))
    assert found.buckets == 8 // after
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.step_ns == pytest.approx(truth, rel=0.03)
    assert found.low_ns <= truth <= found.high_ns


def test_latency_that_buckets_of_one_size_cannot_tell_is_in_the_interval() -> None:
    made = Made(latency=1_500_000)
    found = asked(made, 8, caps=(MB,))
    assert found.low_ns is not None
    assert found.high_ns is not None
    assert found.low_ns <= step_ns(made, in_buckets(made, 1)) <= found.high_ns
    assert any("extrapolated" in line for line in found.basis)


def test_a_small_first_bucket_starts_early() -> None:
    made = Made(byte_ns=20.0)
    caps = (MB, 3 * MB, 4 * MB)
    truth = step_ns(made, ((7,), (6, 5, 4), (3, 2, 1, 0)))
    assert asked(made, 2, caps=caps).step_ns == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize(
    ("setting", "otherwise"),
    [
        ({"bandwidth": 2.0}, {"byte_ns": 4.0}),
        ({"latency": 10.0}, {"latency": 2 * MS}),
        ({"free_network": True}, {"byte_ns": 0.0, "latency": 0}),
        ({"accumulate": 4}, {"backwards": 4}),
        ({"even": 1}, {"late": (0, 0)}),
    ],
)
def test_a_question_is_answered_as_a_run_made_so_would(
    setting: dict[str, object], otherwise: dict[str, object]
) -> None:
    made = Made(late=(0, 12 * MS)) if "even" in setting else Made()
    truth = step_ns(replace(made, **otherwise), in_buckets(made, 2))  # type: ignore[arg-type]
    near = 0.02 if "latency" in setting else 0.01  # one size of buckets hardly tells it
    assert asked(made, 2, **setting).step_ns == pytest.approx(truth, rel=near)


def test_launching_a_bucket_takes_the_host_its_time() -> None:
    found = recorded(Made(), 1)
    slow = Predictor(replace(found.model, launch_ns=float(MS)))
    many, one = (
        slow.predict("", Setting(caps=(cap,), free_network=True)).step_ns or 0 for cap in (MB, 100.0)
    )  # fmt: skip
    assert many - one == pytest.approx(7 * MS)


def test_an_answer_for_accumulation_compares_backwards_and_not_updates() -> None:
    found = asked(Made(), 2, accumulate=4)
    assert found.per_backward_ns == round((found.step_ns or 0) / 4)
    assert found.gain_ratio is not None
    assert 0 < found.gain_ratio < 0.5


def unlike_steps() -> Predictor:
    """Three steps, of which neither the longest nor the shortest has the least lateness."""
    ways = [(0, 50 * MS), (100 * MS, 10 * MS), (40 * MS, 160 * MS)]
    models = [recorded(Made(forward=40 * MS + more, late=(0, late)), 8).model for more, late in ways]
    return Predictor(replace(models[0], samples=tuple(model.samples[-1] for model in models)))


@pytest.mark.parametrize("setting", [{"even": 1}, {"free_network": True}, {"accumulate": 4}, {"caps": (MB,)}])
def test_a_gain_is_that_of_the_step_before_and_after(setting: dict[str, object]) -> None:
    """Of steps in which a rank is late by 50, 10 and 160 ms, the median of their gains is another number."""
    found = unlike_steps()
    before, after = found.predict("", Setting()), found.predict("", Setting(**setting))  # type: ignore[arg-type]
    assert after.per_backward_ns and before.per_backward_ns and after.gain_ratio is not None
    assert after.gain_ratio == pytest.approx(1 - after.per_backward_ns / before.per_backward_ns, abs=1e-6)
    assert (after.gain_low_ratio or 0) <= after.gain_ratio <= (after.gain_high_ratio or 0)


@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize("late", [(0, 0), (0, 30 * MS), (0, 0, 60 * MS)])
def test_what_is_exposed_is_the_same_as_recorded_and_played_again(late: tuple[int, ...], size: int) -> None:
    """A rank that waits for a late one has its collective running: that is exposed in both."""
    found = answer(recorded(Made(late=late), size), {})
    assert found.replayed.exposed_ns == pytest.approx(found.recorded_exposed_ns, rel=0.001)


def test_a_free_network_leaves_the_wait_for_a_late_rank_exposed() -> None:
    """Two ranks, one of them 30 ms late: half of that, in the mean."""
    assert asked(Made(late=(0, 30 * MS)), 8, free_network=True).exposed_ns == pytest.approx(15 * MS)


def test_what_slows_compute_is_learnt_from_backwards_that_only_accumulate() -> None:
    made = Made(slowdown=0.3, backwards=2)
    found = recorded(made, 1)
    assert found.contention.is_known
    assert found.contention.ratio == pytest.approx(0.3, abs=0.03)
    truth = step_ns(made, in_buckets(made, 8))
    assert found.predict("one bucket", Setting(caps=(100.0,))).step_ns == pytest.approx(truth, rel=0.02)


def test_what_slows_compute_is_learnt_from_the_waits_for_a_processor() -> None:
    made = Made(slowdown=0.3)
    found = recorded(made, 1)
    assert found.contention.is_known
    assert found.contention.ratio == pytest.approx(0.3, abs=0.03)
    truth = step_ns(made, in_buckets(made, 8))
    assert found.predict("one bucket", Setting(caps=(100.0,))).step_ns == pytest.approx(truth, rel=0.02)


def linked(made: Made, own: str, peer: str) -> Predictor:
    """Whose ranks send from one address to the other."""
    load = [LinkSample(0, own, peer, 0, 0, 0, 0)]
    ranks = (replace(one, load=replace(one.load, links=tuple(load))) for one in made_ranks(made, in_buckets(made, 1)))
    return Predictor(model_of([observe(one) for one in ranks]))


def test_what_comes_in_from_another_host_interrupts_more_than_waits_tell() -> None:
    made = Made(slowdown=0.3)
    between, within = linked(made, "10.0.0.1", "10.0.0.2"), linked(made, "10.0.0.1", "10.0.0.1")
    assert (between.model.crosses_hosts, within.model.crosses_hosts) == (True, False)
    assert between.contention.ratio > recorded(made, 1).contention.ratio > within.contention.ratio > 0
    for found in (between, within):
        assert found.contention.low_ratio < 0.3 < found.contention.high_ratio


def test_ranks_of_one_machine_are_told_with_less_certainty_and_why() -> None:
    made = Made(slowdown=0.3)
    asked = Setting(caps=(100.0,))
    between, within = (linked(made, "10.0.0.1", peer).predict("one", asked) for peer in ("10.0.0.2", "10.0.0.1"))
    assert (within.high_ns or 0) - (within.low_ns or 0) > (between.high_ns or 0) - (between.low_ns or 0)
    assert any("All ranks ran on one machine" in line for line in within.basis)
    assert not any("one machine" in line for line in between.basis)
    assert (within.gain_low_ratio or 0) < (between.gain_low_ratio or 0)


def test_waits_for_a_processor_that_others_take_tell_nothing_of_communication() -> None:
    found = recorded(Made(slowdown=0.3, crowded=(0, 20 * MS, 25 * MS, 15 * MS)), 1)
    assert not found.contention.is_known
    assert found.contention.high_ratio > 0.3
    told = found.predict("one bucket", Setting(caps=(100.0,)))
    assert any("other programs took the processors too" in line for line in told.basis)


def test_waits_longer_than_communication_tell_nothing_of_it() -> None:
    ranks = [
        replace(one, load=replace(one.load, marks=tuple(replace(m, queued_ns=10**9) for m in one.load.marks)))
        for one in made_ranks(Made(slowdown=0.3), in_buckets(Made(), 1))
    ]
    found = Predictor(model_of([observe(one) for one in ranks]))
    assert (found.contention.is_known, found.contention.ratio) == (False, 0.0)
    assert found.contention.high_ratio == 1.0


def test_a_damaged_record_of_readiness_names_no_gradient_that_there_is_not() -> None:
    ranks = list(made_ranks(Made(), in_buckets(Made(), 2)))
    odd = [replace(one, parameters=np.where(one.parameters == 3, 10**6, one.parameters)) for one in ranks[0].ready]
    ranks[0] = replace(ranks[0], ready=tuple(odd))
    assert observe(ranks[0]).steps[1].ready_ns[3] == NEVER
    assert Predictor(model_of([observe(one) for one in ranks])).recorded_ns > 0


def test_where_nothing_tells_what_slows_compute_the_interval_is_wide_and_says_so() -> None:
    found = recorded(Made(slowdown=0.3), 8)
    assert not found.contention.is_known
    told = found.predict("small buckets", Setting(caps=(MB,)))
    assert told.low_ns is not None
    assert told.high_ns is not None
    assert told.low_ns <= step_ns(Made(slowdown=0.3), in_buckets(Made(), 1)) <= told.high_ns
    assert any("little was computed beside communication" in line for line in told.basis)


def test_the_advised_cap_is_the_best_there_is() -> None:
    made = Made(byte_ns=10.0, latency=1 * MS)
    advice = advise(recorded(made, 8))
    truths = {size: step_ns(made, in_buckets(made, size)) for size in (1, 2, 4, 8)}
    assert advice.best.buckets is not None
    assert truths[8 // advice.best.buckets] <= 1.03 * min(truths.values())
    assert advice.limits[0].name == "transfer"
    assert advice.is_sure


@pytest.mark.parametrize(
    "made",
    [
        Made(byte_ns=10.0, latency=1 * MS),
        Made(byte_ns=30.0, latency=0),
        Made(byte_ns=3.0, latency=4 * MS),
        Made(numels=(20_000,) * 30 + (2_000_000,) * 3, gaps=(2 * MS,) * 33, byte_ns=9.0),
    ],
)
def test_a_short_look_at_all_plans_leaves_out_none_that_would_be_advised(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = recorded(made, 8)
    short = advise(found)
    monkeypatch.setattr("ddptrace.analysis.whatif.advise.PROMISING", 10**6)
    whole = advise(found)
    assert len(short.tried) < len(whole.tried) == whole.plans == short.plans
    assert short.best == whole.best


def test_where_compute_hides_all_of_it_nothing_is_advised() -> None:
    advice = advise(recorded(Made(byte_ns=0.1), 1))
    assert advice.caps_mb == ()
    assert advice.limits == ()
    assert not advice.is_sure


def test_a_slow_rank_is_what_limits_the_step() -> None:
    advice = advise(recorded(Made(byte_ns=0.5, late=(0, 60 * MS)), 1))
    assert [(limit.name, limit.rank) for limit in advice.limits[:1]] == [("straggler", 1)]


def test_what_the_run_cannot_tell_is_refused_with_a_reason() -> None:
    told = asked(Made(), 2, even=7)
    assert told.step_ns is None
    assert told.refusal is not None
    assert "rank 7" in told.refusal


@pytest.mark.parametrize(
    "wrong",
    [{"caps": ()}, {"caps": (0.0,)}, {"bandwidth": 0.0}, {"latency": -1.0}, {"accumulate": 0}, {"ranks": 0},
     {"groups": 0}, {"bandwidth": math.nan}, {"latency": math.nan}, {"bandwidth": 1e-300}, {"latency": math.inf},
     {"caps": 12}, {"caps": (math.nan,)}, {"order": ""}, {"order": "x"}],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DdptraceError, match="is no setting"):
        Setting(**wrong)  # type: ignore[arg-type]


def test_a_setting_that_cannot_be_is_told_by_what_is_wrong_alone() -> None:
    with pytest.raises(DdptraceError) as told:
        Setting(caps=(5.0,), order="last")  # type: ignore[arg-type]
    assert str(told.value) == "Setting(caps=(5.0,), order='last') is no setting: order is ready or definition"


def test_one_rank_alone_sends_nothing() -> None:
    found = recorded(Made(byte_ns=20.0), 8)
    alone, free = found.predict("", Setting(ranks=1)), found.predict("", Setting(free_network=True))
    assert (alone.step_ns, alone.exposed_ns) == (free.step_ns, 0)
    assert any("communicates with nobody" in line for line in alone.basis)


def test_no_step_takes_less_than_nothing() -> None:
    told = asked(Made(), 8, ranks=10**9)
    assert told.low_ns is not None
    assert 0 <= told.low_ns < (told.high_ns or 0)


def test_so_many_groups_as_nobody_needs_end_soon() -> None:
    found = recorded(Made(), 1)
    told, as_many = (found.predict("", Setting(groups=count)) for count in (10**9, 8))
    assert told.step_ns == as_many.step_ns


def test_of_plans_that_are_as_good_the_one_with_fewest_buckets_is_advised() -> None:
    found = recorded(Made(byte_ns=60.0, latency=0), 8)
    rows = [found.predict(f"{cap}", Setting(caps=(cap,))) for cap in (0.1, MB, 2 * MB, 100.0)]
    even = [replace(row, step_ns=100 * MS, high_ns=101 * MS) for row in rows[:3]]
    assert best_of(rows[3], even) == even[2]


def test_what_limits_a_step_is_not_called_useless_and_what_wins_is_told() -> None:
    advice = advise(recorded(Made(byte_ns=30.0), 8))
    assert "the fp16 hook" in [one.name for one in advice.useful]
    assert not {one.name for one in advice.useful} & {one.name for one in advice.useless}
    straggler = advise(recorded(Made(byte_ns=0.5, late=(0, 60 * MS)), 1))
    assert "a faster rank 1" not in [one.name for one in straggler.useless]


@pytest.mark.parametrize("made", [Made(numels=(64,) * 8), Made(numels=(1,))])
def test_the_smallest_model_has_its_advice(made: Made) -> None:
    made = replace(made, gaps=(10 * MS,) * len(made.numels))
    assert advise(recorded(made, 8)).best.buckets == 1


def test_gradients_without_bytes_are_no_model() -> None:
    made = Made(numels=(0,) * 8)
    with pytest.raises(DdptraceError, match="have no bytes"):
        recorded(made, 2)


def test_a_run_with_a_rank_missing_is_no_model() -> None:
    ranks = [observe(one) for one in made_ranks(Made(), in_buckets(Made(), 2))]
    with pytest.raises(DdptraceError, match="only 1 of 2 ranks"):
        model_of(ranks[:1], 2)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"on_device": True}, "trained on a GPU"),
        ({"on_device": True, "recorded": False}, "traces are of a GPU"),
        ({"recorded": False}, "files of torch.profiler alone"),
        ({"group_size": 1}, "a group of 1 of the run's 2 ranks"),
        ({"reducers": 2}, "2 data-parallel modules"),
        ({"steps": ()}, "no step can be replayed"),
    ],
)
def test_what_would_be_guessed_is_no_model(odd: dict[str, object], reason: str) -> None:
    ranks = [replace(observe(one), **odd) for one in made_ranks(Made(), in_buckets(Made(), 2))]  # type: ignore[arg-type]
    with pytest.raises(DdptraceError, match=reason):
        model_of(ranks, 2)


@pytest.mark.parametrize(
    ("traces", "reason"),
    [
        ("judged/no-steps-sglang", "no profiler window of a GPU holds a whole step"),
        ("odd/cpu_only_gloo_rank34.pt.trace.json.gz", "files of torch.profiler alone"),  # one rank of 300
    ],
)
def test_no_user_is_sent_for_more_files_where_these_could_not_help(
    shared_traces: Path, traces: str, reason: str
) -> None:
    with pytest.raises(DdptraceError, match=reason) as refused:
        predictor(shared_traces / traces)
    assert "bring all rank folders" not in str(refused.value)


def test_a_run_of_one_step_is_no_model() -> None:
    ranks = [observe(one) for one in made_ranks(Made(steps=2), in_buckets(Made(), 2))]
    with pytest.raises(DdptraceError, match="1 steps of this run"):
        model_of(ranks, 2)
