"""What the step of a pipeline would take with another schedule, or with another number of microbatches as large: each
rank computes in the order of the schedule, and each computation takes as long as it took its stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import hypot
from statistics import median
from typing import Final

from ddptrace.analysis.pipeline.digest import PipelineDigest, pipeline_digests
from ddptrace.analysis.pipeline.schedule import STAGES, Computation, Orders, computation_of, length, order_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import StepLength, summarize
from ddptrace.analysis.tables.parallelism import PipelineRow, Work
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.whatif.tables import Prediction, Schedule, Setting, WhatIf
from ddptrace.errors import DdptraceError
from ddptrace.units import counted

MODEL_RATIO: Final = 0.05
"""Share of the step by which a prediction may be off where the replay of the recorded turn is not."""
NAMES: Final[Mapping[str, Schedule]] = {
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved",
}
WHOLE: Final[Mapping[str, tuple[str, ...]]] = {
    Work.FORWARD: (Work.FORWARD,),
    Work.BACKWARD: (Work.BACKWARD, Work.INPUTS, Work.WEIGHTS),
}
"""What schedules compute at once, and what of it others compute apart."""
Times = Mapping[tuple[int, str], int]
"""By stage and work: what one microbatch takes, with what the host does and sends for it."""


class PipelinePredictor:
    """Answers questions about the pipeline of one run.

    Raises:
        DdptraceError: No whole turn of a pipeline is known.
    """

    def __init__(self, result: Result) -> None:
        digests, summary = pipeline_digests(result), summarize(result)
        typical, exposed = summary.typical, summary.part("exposed_comm")
        if not digests or typical is None:
            raise DdptraceError("no whole turn of a pipeline is in this run")
        self.result = result
        self._digest: PipelineDigest = max(digests, key=lambda one: one.window_ns)
        self._typical: StepLength = typical
        self._exposed_ns = 0 if exposed is None else exposed.ns
        rows = [row for row in result.pipeline if row.pipeline == self._digest.pipeline]
        self._times = _times(rows)
        orders = _orders([row for row in rows if row.turn == self._digest.turn])
        replayed = length(orders, _durations(orders, self._times))
        if not replayed:
            raise DdptraceError("the computations of this pipeline wait for each other in a circle")
        self._replayed_ns = replayed

    @property
    def recorded_ns(self) -> float:
        """The typical step of the run."""
        return self._typical.window_ns

    @property
    def replay_error(self) -> float:
        """How much longer a turn takes when played again as it was, as a share of it."""
        return self._replayed_ns / self._digest.window_ns - 1

    @property
    def _ranks(self) -> int:
        return len(self._digest.ranks)

    def predict(self, name: str, setting: Setting) -> Prediction:
        """Answer one question. One that cannot be answered is no error but an answer with a refusal."""
        refusal = next(self._refusals(setting), None)
        if refusal is not None:
            return Prediction(name, setting, *(None,) * 10, refusal=refusal)
        microbatches = setting.microbatches or self._digest.microbatches
        step = self._step_ns(setting)
        off = hypot(self.replay_error, MODEL_RATIO)
        kept = step / microbatches * self._digest.microbatches / self.recorded_ns
        return Prediction(
            name,
            setting,
            step_ns=round(step),
            low_ns=round(step * (1 - off)),
            high_ns=round(step * (1 + off)),
            per_backward_ns=round(step / microbatches),
            gain_ratio=1 - kept,
            gain_low_ratio=1 - kept - off,
            gain_high_ratio=1 - kept + off,
            exposed_ns=None,
            comm_ns=None,
            buckets=None,
            basis=tuple(self._basis(setting)),
        )

    def answer(self, settings: Mapping[str, Setting]) -> WhatIf:
        """Answer several questions, each by its name."""
        return WhatIf(
            len(self.result.ranks),
            self._digest.steps,
            round(self.recorded_ns),
            self._exposed_ns,
            self._digest.microbatches,
            self.predict("as recorded", Setting()),
            self.replay_error,
            None,
            None,
            Table(Prediction, [self.predict(name, setting) for name, setting in settings.items()]),
            "pipeline",
        )

    def usual(self) -> dict[str, Setting]:
        """Return what is asked where the reader asked nothing."""
        now, microbatches = NAMES.get(self._digest.schedule), self._digest.microbatches
        asked = {f"schedule {one}": Setting(schedule=one) for one in STAGES if one != now}
        counts = (times * microbatches for times in (2, 4))
        return asked | {counted(count, "microbatch", "microbatches"): Setting(microbatches=count) for count in counts}

    def _step_ns(self, setting: Setting) -> float:
        """What is not of the turn stays as it was; what a turn took beyond its replay grows with it."""
        if setting == Setting():
            return self.recorded_ns
        schedule = setting.schedule or NAMES[self._digest.schedule]
        microbatches = setting.microbatches or self._digest.microbatches
        orders = [order_of(schedule, rank, self._ranks, microbatches) for rank in range(self._ranks)]
        turn = length(orders, _durations(orders, self._of_stages(STAGES[schedule] * self._ranks)))
        assert turn is not None  # these schedules do not wait in a circle
        longer = (turn / self._replayed_ns - 1) * self._digest.window_ns
        return self.recorded_ns + longer * self._digest.turns / self._digest.steps

    def _of_stages(self, stages: int) -> Times:
        """Return the times of the same layers in another number of stages: merge neighbours, or halve each stage."""
        had = self._digest.stages
        whole = {
            (stage, work): sum(self._times.get((stage, part), 0) for part in parts)
            for stage in range(had)
            for work, parts in WHOLE.items()
        }
        if stages > had:
            return {(stage, work): whole[stage * had // stages, work] * had // stages for stage, work in _all(stages)}
        each = had // stages
        return {
            (stage, work): sum(whole[each * stage + at, work] for at in range(each)) for stage, work in _all(stages)
        }

    def _refusals(self, setting: Setting) -> Iterator[str]:
        if setting != Setting(schedule=setting.schedule, microbatches=setting.microbatches):
            yield "of a pipeline only other schedules and numbers of microbatches are predicted"
        schedule = setting.schedule or NAMES.get(self._digest.schedule)
        if setting != Setting() and schedule is None:
            yield f"the order of {self._digest.schedule} is not known to ddptrace: name another with --schedule"
        elif schedule is not None and setting != Setting():
            wanted, had = STAGES[schedule] * self._ranks, self._digest.stages
            if wanted % had and had % wanted:
                yield f"its {had} stages do not make {wanted}"
            microbatches = setting.microbatches or self._digest.microbatches
            if schedule == "interleaved" and microbatches % self._ranks:
                yield f"{microbatches} microbatches cannot be interleaved over {self._ranks} ranks"

    def _basis(self, setting: Setting) -> Iterator[str]:
        if setting.microbatches is not None:
            yield (
                "Microbatches are taken to be as large as the recorded ones, so that a step trains on more or fewer"
                " samples: the change is that of the time for each microbatch."
            )
        if setting.schedule == "gpipe":
            yield "gpipe: each rank keeps the activations of all microbatches; 1f1b of no more than there are stages."
        if setting.schedule is not None and STAGES[setting.schedule] * self._ranks != self._digest.stages:
            yield "Other stages: layers are taken to divide into stages that take equally long."
        if setting != Setting() and setting.schedule is not None and self._is_split:
            yield "Backwards that the recorded schedule computes in two parts are put together."

    @property
    def _is_split(self) -> bool:
        return any(work == Work.WEIGHTS for _, work in self._times)


def _all(stages: int) -> Iterator[tuple[int, str]]:
    yield from ((stage, work) for stage in range(stages) for work in WHOLE)


def _orders(rows: Sequence[PipelineRow]) -> Orders:
    """What each rank computed in one turn."""
    found: defaultdict[int, list[Computation]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.begin_at_ns):
        found[row.rank].append(computation_of(row))
    return list(found.values())


def _durations(orders: Orders, times: Times) -> dict[Computation, int]:
    return {one: times[one.stage, one.work] for order in orders for one in order}


def _times(rows: Sequence[PipelineRow]) -> Times:
    """Medians over the turns, without the first where there are others."""
    found: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
    for row in rows:
        if row.turn or all(one.turn == 0 for one in rows):
            beside = (row.transfer_ns or 0) + (row.other_ns or 0)
            found[row.stage, row.work].append(row.end_at_ns - row.begin_at_ns + beside)
    return {key: round(median(every)) for key, every in found.items()}
