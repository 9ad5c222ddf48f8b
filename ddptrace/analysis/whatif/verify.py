"""What was predicted, held against a run that was made with it."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Prediction


@dataclass(frozen=True, slots=True)
class Verdict:
    """`error_ratio`: of the predicted step, to the measured one. `is_as_planned`: so many buckets were sent as planned;
    else the command did not take what it was told, and nothing is proved."""

    predicted_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    steps: int
    error_ratio: float
    is_within: bool
    planned_buckets: int
    sent_buckets: int

    @property
    def is_as_planned(self) -> bool:
        return self.planned_buckets == self.sent_buckets


def verdict_of(predicted: Prediction, measured: Predictor) -> Verdict:
    """`predicted` is answered, and of the run that was to be made better."""
    step, low, high = predicted.step_ns or 0, predicted.low_ns or 0, predicted.high_ns or 0
    took = round(measured.recorded_ns)
    return Verdict(
        step, low, high, took, len(measured.model.samples), step / took - 1, low <= took <= high,
        predicted.buckets or 0, len(measured.model.buckets),
    )  # fmt: skip
