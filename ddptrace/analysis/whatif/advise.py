"""The best plan among many, what limits the step now, and what would not help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ddptrace.analysis.whatif.model import Model
from ddptrace.analysis.whatif.play import MIB, Buckets
from ddptrace.analysis.whatif.predict import Predictor, buckets_of, uncertainty
from ddptrace.analysis.whatif.tables import Prediction, Setting
from ddptrace.units import duration

CAPS_MB: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 12.0, 18.0, 25.0, 50.0, 100.0, 200.0, 400.0)
LIST_MIN_GAIN: Final = 0.01
"""A list of caps is worth its words where it wins so much of the step over one cap."""
PROMISING: Final = 3
"""So many plans of each kind are looked at closely."""
AS_GOOD: Final = 1.005
"""Plans that take at most so many times as long as the best are as good."""
WORTH_RATIO: Final = 0.02
"""What wins less of the step is no help."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What the step would win without one limit, by the model."""

    name: str  # "transfer" (all communication that shows), "bandwidth", "latency", "buckets", "straggler" or
    #   "contention"
    gain_ns: int  # what the step would win
    gain_ratio: float  # gain / step
    rank: int | None = None  # of a straggler


@dataclass(frozen=True, slots=True, repr=False)
class Advice:
    """The best bucket sizes for the training that one run recorded."""

    recorded_ns: int  # the typical step, as recorded
    replay_error_ratio: float  # (replayed step - recorded step) / recorded step
    recorded: Prediction  # the recorded setting, predicted as any other
    best: Prediction  # the best setting; the recorded one where no other is surely better
    caps_mb: tuple[float, ...]  # caps to take: one for bucket_cap_mb, several for bucket_cap_mb_list, none to change
    #   nothing
    recorded_caps_mb: tuple[float, ...]  # caps of the recorded buckets
    is_sure: bool  # the whole interval of the gain is above 0
    limits: tuple[Limit, ...]  # what limits the step, largest first
    useful: tuple[Prediction, ...]  # what is sure to win something besides buckets
    useless: tuple[Prediction, ...]  # what would not help
    plans: int  # bucket plans that were compared
    tried: tuple[Prediction, ...]  # the most promising of them

    def __repr__(self) -> str:
        caps = f"caps of {', '.join(f'{cap:g}' for cap in self.caps_mb)} MiB" if self.caps_mb else "no other caps"
        return f"Advice: {caps} for a step of {duration(self.recorded_ns)}"

    @property
    def first_rank(self) -> Prediction | None:
        """The slowest rank made as fast as the others, where that is sure to win and wins more than any plan; else
        None."""
        evened = next((one for one in self.useful if one.setting.even is not None), None)
        return evened if evened and _step(evened) < min(map(_step, (self.recorded, *self.tried))) else None

    @property
    def also_useful(self) -> tuple[Prediction, ...]:
        """What is sure to win something besides buckets and the rank that comes first."""
        first = self.first_rank
        return tuple(one for one in self.useful if one is not first)

    def to_json_dict(self) -> dict[str, Any]:
        """The documented keys of `ddptrace advise --json`."""
        return asdict(self)


def advise(predictor: Predictor) -> Advice:
    """Of one recorded run."""
    recorded = predictor.predict("as recorded", Setting())
    plans = list(candidates(predictor))
    tried = [predictor.predict(_named(caps), Setting(caps=caps)) for caps in _promising(predictor, plans)]
    best = best_of(recorded, tried)
    limits = tuple(sorted(_limits(predictor, recorded), key=lambda limit: -limit.gain_ns))
    remedies = [prediction for prediction in _remedies(predictor) if prediction.refusal is None]
    useful = tuple(prediction for prediction in remedies if (prediction.gain_low_ratio or 0.0) > WORTH_RATIO)
    useless = tuple(
        prediction for prediction in remedies if 1 - _step(prediction) / max(_step(recorded), 1) < WORTH_RATIO
    )
    gain = best.gain_low_ratio or 0.0
    return Advice(
        round(predictor.recorded_ns),
        predictor.replay_error,
        recorded,
        best,
        best.setting.caps or (),
        tuple(cap / MIB for cap in predictor.model.caps_nbytes),
        gain > 0,
        tuple(limit for limit in limits if limit.gain_ratio >= WORTH_RATIO),
        useful,
        useless,
        len(plans),
        tuple(tried),
    )


def _promising(predictor: Predictor, plans: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Those that a short look finds best, over the likeliest wire and over one with more latency; single caps among
    them."""
    sketched = np.array([predictor.sketch(Setting(caps=caps)) for caps in plans])
    orders = [[plans[at] for at in np.argsort(column, kind="stable")] for column in sketched.T]
    single = ([caps for caps in order if len(caps) == 1] for order in orders)
    kept = {caps for order in (*orders, *single) for caps in order[:PROMISING]}
    return [caps for caps in plans if caps in kept]


def candidates(predictor: Predictor) -> Iterator[tuple[float, ...]]:
    """Caps that give different buckets, one cap alone first: of a small first bucket, which starts early, and a small
    last one, which is what the step waits for."""
    seen = set()
    total = predictor.model.nbytes / MIB
    one = [cap for cap in CAPS_MB if cap < 2 * total] or [CAPS_MB[0]]
    for caps in (*((cap,) for cap in one), *_lists(one, total)):
        buckets = buckets_of(Setting(caps=caps), predictor.model)
        if buckets not in seen:
            seen.add(buckets)
            yield caps


def _lists(caps: Sequence[float], total: float) -> Iterator[tuple[float, ...]]:
    for cap in (cap for cap in caps if cap >= 1 and total / cap <= 50):
        for small in (small for small in (0.25, 1.0) if small < cap):
            yield small, cap
            yield *(cap for _ in range(int(total / cap))), small
            yield small, *(cap for _ in range(int(total / cap))), small


def best_of(recorded: Prediction, tried: Sequence[Prediction]) -> Prediction:
    """One cap where a list is not worth it; what was recorded where nothing is."""
    alone = _fewest([prediction for prediction in tried if len(prediction.setting.caps or ()) == 1])
    best = _fewest(tried)
    if _cautious(best) > _cautious(alone) * (1 - LIST_MIN_GAIN):
        best = alone
    return best if _step(best) < _step(recorded) * (1 - LIST_MIN_GAIN) else recorded


def _fewest(tried: Sequence[Prediction]) -> Prediction:
    """Of those that are as good as the best, the one with fewest buckets: what is extrapolated least."""
    least = min(map(_cautious, tried))
    return min(
        (prediction for prediction in tried if _cautious(prediction) <= least * AS_GOOD),
        key=lambda one: one.buckets or 0,
    )


def _cautious(prediction: Prediction) -> int:
    """Many small buckets are best where latency is nothing, which a run of a few large ones does not tell."""
    return (prediction.step_ns or 0) + (prediction.high_ns or 0)


def _step(prediction: Prediction) -> int:
    return prediction.step_ns or 0


def _named(caps: Sequence[float]) -> str:
    told = ", ".join(f"{cap:g}" for cap in caps)
    return f"bucket_cap_mb={told}" if len(caps) == 1 else f"bucket_cap_mb_list=[{told}]"


def _limits(predictor: Predictor, recorded: Prediction) -> Iterator[Limit]:
    asked = {
        "transfer": Setting(free_network=True),
        "buckets": Setting(perfect_overlap=True),
        "bandwidth": Setting(bandwidth=2.0),
        "latency": Setting(latency=0.0),
    }
    for name, setting in asked.items():
        yield _limit(name, predictor.predict(name, setting), recorded)
    rank = slowest(predictor)
    if rank is not None:
        yield _limit("straggler", predictor.predict("straggler", Setting(even=rank)), recorded, rank)
    eased = predictor.without_contention()
    if predictor.contention.is_known:
        gain = _step(recorded) - eased
        yield Limit("contention", round(gain), gain / max(_step(recorded), 1))


def _limit(name: str, without: Prediction, recorded: Prediction, rank: int | None = None) -> Limit:
    gain = _step(recorded) - _step(without)
    return Limit(name, gain, gain / max(_step(recorded), 1), rank)


def slowest(predictor: Predictor) -> int | None:
    """Return the late rank that costs most of those that the analysis names. Without an analysis, return the rank that
    computes longest; None with one rank, or if that may be chance."""
    model = predictor.model
    if predictor.late is not None:
        return next((one.rank for one in predictor.late if one.rank in model.ranks), None)
    if len(model.ranks) < 2:
        return None
    own = np.array(
        [sample.ahead_ns * model.backwards + sample.compute_ns + sample.after_ns for sample in model.samples]
    )
    at = int(np.argmax(np.median(own, axis=0)))
    more = own[:, at] - np.median(np.delete(own, at, axis=1), axis=1)
    return model.ranks[at] if np.median(more) > uncertainty(more) else None


def _remedies(predictor: Predictor) -> Iterator[Prediction]:
    yield predictor.predict("a network of twice the bandwidth", Setting(bandwidth=2.0))
    yield predictor.predict("a network of half the latency", Setting(latency=0.5))
    yield predictor.predict("the fp16 hook", Setting(fp16=True))
    yield predictor.predict("process groups that take turns", Setting(groups=2))
    rank = slowest(predictor)
    if rank is not None:
        yield predictor.predict(f"a faster rank {rank}", Setting(even=rank))


# The advice held against a run that was made with it ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verification:
    """`error_ratio`: of the predicted step, to the measured one. `unlike`: why the run proves nothing, since it is not
    what was predicted; None where it is."""

    predicted_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    steps: int
    error_ratio: float
    is_within: bool
    planned_buckets: int
    sent_buckets: int
    unlike: str | None = None


def verification_of(predicted: Prediction, measured: Predictor, recorded: Predictor) -> Verification:
    """`predicted` is answered, and of the recorded run, which was to be made better."""
    step, low, high = predicted.step_ns or 0, predicted.low_ns or 0, predicted.high_ns or 0
    took = round(measured.recorded_ns)
    return Verification(
        step,
        low,
        high,
        took,
        len(measured.model.samples),
        step / took - 1,
        low <= took <= high,
        predicted.buckets or 0,
        len(measured.model.buckets),
        _unlike(measured.model, recorded.model, buckets_of(predicted.setting, recorded.model)),
    )


def _unlike(measured: Model, recorded: Model, planned: Buckets) -> str | None:
    if measured.world_size != recorded.world_size:
        return f"the command ran {measured.world_size} ranks and the recorded run had {recorded.world_size}"
    if [parameter.nbytes for parameter in measured.parameters] != [
        parameter.nbytes for parameter in recorded.parameters
    ]:
        return "the command trained another model"
    if len(measured.buckets) != len(planned):
        return f"of buckets in a step the command sent {len(measured.buckets)}, and the advice is {len(planned)}"
    return None
