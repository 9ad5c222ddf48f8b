"""What was predicted, held against a run that was made with it."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.analysis.whatif.model import Model
from ddptrace.analysis.whatif.plan import Buckets
from ddptrace.analysis.whatif.predict import Predictor, buckets_of
from ddptrace.analysis.whatif.tables import Prediction


@dataclass(frozen=True, slots=True)
class Verdict:
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


def verdict_of(predicted: Prediction, measured: Predictor, recorded: Predictor) -> Verdict:
    """`predicted` is answered, and of the recorded run, which was to be made better."""
    step, low, high = predicted.step_ns or 0, predicted.low_ns or 0, predicted.high_ns or 0
    took = round(measured.recorded_ns)
    return Verdict(
        step, low, high, took, len(measured.model.samples), step / took - 1, low <= took <= high,
        predicted.buckets or 0, len(measured.model.buckets),
        _unlike(measured.model, recorded.model, buckets_of(predicted.setting, recorded.model)),
    )  # fmt: skip


def _unlike(measured: Model, recorded: Model, planned: Buckets) -> str | None:
    if measured.world_size != recorded.world_size:
        return f"the command ran {measured.world_size} ranks and the recorded run had {recorded.world_size}"
    if [one.nbytes for one in measured.parameters] != [one.nbytes for one in recorded.parameters]:
        return "the command trained another model"
    if len(measured.buckets) != len(planned):
        return f"of buckets in a step the command sent {len(measured.buckets)}, and the advice is {len(planned)}"
    return None
