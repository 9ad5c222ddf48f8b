"""Every kind of finding, declared once: its code, how much it matters, what it means, and what follows from it.

A finding is one sentence in the report, on the terminal, in `result.findings` and in the JSON. It is made from its
kind: `PROCESS_DIED("rank 3", "rank 3 did not end its trace ...")`. Sentences are written where the finding is made,
most of them in `analysis/findings/`. The reference of findings in the documentation is made from this file.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]

SEVERITIES: Final[Mapping[str, str]] = {
    "error": "something failed, or records are wrong",
    "warning": "lost time, or numbers that are worse than they could be",
    "info": "context that you need to read the numbers",
}
"""From the gravest to the least, with their meanings."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence for the reader."""

    code: str  # short name, listed in the reference of findings
    severity: str  # "info", "warning" or "error"
    where: str  # rank, step, group or file that it is about, or "run"
    message: str  # the sentence

    @property
    def kind(self) -> FindingKind:
        """Its kind; `UNKNOWN` if another version of ddptrace recorded it under a code that this one does not have."""
        return KINDS.get(self.code, UNKNOWN)


class Section(enum.StrEnum):
    """A section of the report, by its title."""

    BUCKETS = "Exposed time per bucket"
    UNITS = "Exposed time per unit"
    TYPICAL_STEP = "A typical step"
    LATE_RANKS = "Ranks that the others wait for"
    MATCHES = "The same collective on all ranks"
    RANKS = "Ranks"
    COLLECTIVES = "Collectives"
    LAUNCHES = "Does the host keep up?"
    IDLE = "What held the host"
    COPIES = "Copies"
    KERNELS = "Kernels"
    REMOTE_CALLS = "Remote calls"
    PIPELINES = "Pipelines"
    EXPERTS = "Who gets how much in all-to-alls"
    JITTER = "What varies from step to step"
    CONTENTION = "Computing beside communication"
    TRAFFIC = "Traffic"
    STEPS = "Every step"
    CLOCKS = "Clocks"
    DEVICE = "Device time"
    MEASURED = "What was measured, and how"
    NOT_MEASURED = "What was not"


class Chapter(enum.StrEnum):
    """A chapter of the reference of findings, by its heading."""

    LOST_TIME = "Where time is lost"
    STEPS = "Steps and buckets"
    BASIS = "What the numbers are based on"
    RANKS = "Across ranks"
    TRAFFIC = "Traffic"
    END = "How a run ended"
    MISSING_RECORDS = "Records that are missing"
    SWITCHED_OFF = "Parts that switched themselves off"
    DIRECTORIES = "Run directories"
    OTHERS = "Traces recorded by others"
    COMPARISONS = "Comparisons"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding. Call it to make one.

    `meaning` and `to_do` are Markdown for the reference. All fields after them have a default that fits most kinds.
    """

    code: str
    chapter: Chapter
    severity: Severity  # the usual one
    meaning: str
    to_do: str
    also: tuple[Severity, ...] = ()  # other severities that some cases have
    sections: tuple[Section, ...] = ()  # where its numbers stand in the report: linked is the first that the report has
    is_advice: bool = False  # it says what to do next, and is shown under "Look at next"
    silences: tuple[FindingKind, ...] = ()  # kinds that are left out of a run that has this one: see `without_silenced`
    hidden_until_end: tuple[Severity, ...] = ()  # every run that still goes on has it with these: `watch` hides it then
    asks_for_window: bool = False  # it asks for a profiler window, which `ddptrace watch` does not read
    concerns_counts: bool = False  # `ddptrace traffic` shows it: counts are incomplete, or mean something else
    loses_records: bool = False  # records that a rank made are missing, so no delivery of telemetry is whole
    spoils_benchmark: bool = False  # a benchmark with this finding is worthless
    is_part_failed: bool = False  # a part of ddptrace did not watch, or stopped watching

    def __call__(self, where: str, message: str, severity: Severity | None = None) -> Finding:
        """Make a finding. `where`: the rank, step, group or file that it is about, or "run". `severity`: one of `also`,
        if not the usual one."""
        return Finding(self.code, severity or self.severity, where, message)


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings by severity, unknown severities last. Findings of one severity keep their order."""
    places = {severity: place for place, severity in enumerate(SEVERITIES)}
    return sorted(findings, key=lambda finding: places.get(finding.severity, len(places)))


def without_silenced(findings: Sequence[Finding]) -> list[Finding]:
    """Leave out every finding of a kind that another finding silences."""
    silenced = {kind.code for finding in findings for kind in finding.kind.silences}
    return [finding for finding in findings if finding.code not in silenced]


# Where time is lost ---------------------------------------------------------------------------------------------------

EXPOSED_BUCKET = FindingKind(
    "exposed-bucket",
    Chapter.LOST_TIME,
    "warning",
    "this bucket costs the step most exposed communication",
    "look for a late gradient and for a slow rank; `ddptrace advise` predicts which bucket size shortens the step",
    also=("info",),
    sections=(Section.BUCKETS,),
    is_advice=True,
)
EXPOSED_COMMUNICATION = FindingKind(
    "exposed-communication",
    Chapter.LOST_TIME,
    "warning",
    "communication is exposed, and most of it is in no known bucket of gradients",
    "look at the call that is exposed most: what issues it, and what it waits for",
    sections=(Section.COLLECTIVES,),
    is_advice=True,
)
FSDP_PREFETCH = FindingKind(
    "fsdp-prefetch",
    Chapter.LOST_TIME,
    "warning",
    "FSDP2 gathers parameters so late that the step waits for them, while the computation before them hides nothing",
    "gather earlier: `set_modules_to_forward_prefetch`, `set_modules_to_backward_prefetch`",
    sections=(Section.UNITS,),
    is_advice=True,
)
FSDP_UNIT_SIZE = FindingKind(
    "fsdp-unit-size",
    Chapter.LOST_TIME,
    "warning",
    "one FSDP2 unit is far larger than the others, or the only one, and its communication is exposed",
    "call `fully_shard` on its children as well",
    sections=(Section.UNITS,),
    is_advice=True,
)
FSDP_RESHARD = FindingKind(
    "fsdp-reshard",
    Chapter.LOST_TIME,
    "info",
    "the step waits in backward for parameters that FSDP2 freed after forward",
    "if there is memory for them, keep them: `reshard_after_forward=False`",
    sections=(Section.UNITS,),
    is_advice=True,
)
FSDP_REDUCTION = FindingKind(
    "fsdp-reduction",
    Chapter.LOST_TIME,
    "info",
    "the step waits for gradients that FSDP2 reduces in float32",
    "if the training bears it, reduce them in half the bytes: `MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)`",
    sections=(Section.UNITS,),
    is_advice=True,
)
FSDP_COMMUNICATOR = FindingKind(
    "fsdp-communicator",
    Chapter.LOST_TIME,
    "info",
    "the step waits in backward for parameters whose gather is queued behind other collectives of its process group",
    "give reductions a separate process group: `set_separate_reduce_scatter_group` (torch 2.13)",
    sections=(Section.UNITS,),
    is_advice=True,
)
FSDP_ACCUMULATION = FindingKind(
    "fsdp-accumulation",
    Chapter.LOST_TIME,
    "info",
    "gradients are accumulated over several backwards of an update, and FSDP2 reduces them in each, exposed",
    "reduce them once: `set_requires_gradient_sync(False)` before all but the last backward; without memory for whole "
    "gradients, `set_is_last_backward(False)`",
    sections=(Section.UNITS,),
    is_advice=True,
)
GRADIENTS_ONE_BY_ONE = FindingKind(
    "gradients-one-by-one",
    Chapter.LOST_TIME,
    "warning",
    "the program all-reduces each gradient by itself, and the step waits for it",
    "put many gradients into one call: `DistributedDataParallel` does, or flatten them into buckets",
    sections=(Section.COLLECTIVES,),
    is_advice=True,
    silences=(EXPOSED_COMMUNICATION,),
)
WELL_HIDDEN = FindingKind(
    "well-hidden",
    Chapter.LOST_TIME,
    "info",
    "little of the step waits for communication",
    "look for time elsewhere",
    sections=(Section.TYPICAL_STEP,),
    is_advice=True,
)
LATE_RANK = FindingKind(
    "late-rank",
    Chapter.LOST_TIME,
    "warning",
    "this rank makes the others wait; phase, cost and cause are named",
    "look at its data loader, for uneven batches, garbage collection, a quota and other programs on its machine",
    sections=(Section.LATE_RANKS, Section.RANKS),
    is_advice=True,
)
SLOW_LINK = FindingKind(
    "slow-link",
    Chapter.LOST_TIME,
    "warning",
    "the link of this host costs every rank time",
    "look at its network adapter, cable and switch port, and at who else sends over them",
    sections=(Section.LATE_RANKS, Section.MATCHES),
    is_advice=True,
)
WAITING_FOR_RANKS = FindingKind(
    "waiting-for-ranks",
    Chapter.LOST_TIME,
    "warning",
    "much of the communication is waiting for ranks that come late",
    "make the ranks more even; a faster network would not help",
    sections=(Section.LATE_RANKS, Section.MATCHES),
    is_advice=True,
)
RUN_TOO_SHORT = FindingKind(
    "run-too-short",
    Chapter.LOST_TIME,
    "info",
    "a rank seems to make the others wait, but too few steps prove it",
    "trace as many steps as the sentence says",
    sections=(Section.LATE_RANKS, Section.RANKS),
    is_advice=True,
)
JITTER = FindingKind(
    "jitter",
    Chapter.LOST_TIME,
    "warning",
    "steps vary, most of it in one phase of one rank",
    "look at what that phase does now and then",
    sections=(Section.JITTER, Section.STEPS),
    is_advice=True,
)
STEPS_SLOWER = FindingKind(
    "steps-slower",
    Chapter.LOST_TIME,
    "warning",
    "while training, a rank saw its steps become slower than usual, and `when_slow` had a profiler window opened",
    "compare the steps of the window with those before: `late-rank`, `jitter` and `data-bound` name causes",
    sections=(Section.STEPS,),
)
PROCESSORS_CROWDED = FindingKind(
    "processors-crowded",
    Chapter.LOST_TIME,
    "warning",
    "all ranks wait for a processor",
    "start fewer threads or processes, and let nothing else run there",
    sections=(Section.LATE_RANKS, Section.RANKS),
    is_advice=True,
)
QUEUED = FindingKind(
    "queued",
    Chapter.LOST_TIME,
    "warning",
    "collectives wait for a worker thread of the backend longer than they run",
    "launch fewer and larger ones, or spread them over process groups",
    sections=(Section.COLLECTIVES,),
    is_advice=True,
)
SLOW_MESSAGE = FindingKind(
    "slow-message",
    Chapter.LOST_TIME,
    "warning",
    "a small collective takes long, most of it waiting for the last rank",
    "look at what the last rank does before it, or call it less often",
    sections=(Section.MATCHES, Section.COLLECTIVES),
    is_advice=True,
)
WAITED_ON_DEVICE = FindingKind(
    "waited-on-device",
    Chapter.LOST_TIME,
    "info",
    "an exposed collective was launched long before it began on the device; the sentence says what ran meanwhile",
    "look at what the device does before it: a smaller bucket, or work that another stream can do",
    sections=(Section.BUCKETS, Section.COLLECTIVES),
)
BUFFER_BROADCASTS = FindingKind(
    "buffer-broadcasts",
    Chapter.LOST_TIME,
    "warning",
    "DDP sends the model's buffers to all ranks before forward, and that costs much of the step",
    "`broadcast_buffers=False`: statistics of BatchNorm are then those of each rank",
    sections=(Section.COLLECTIVES,),
    is_advice=True,
)
UNEVEN_COMPUTE = FindingKind(
    "uneven-compute",
    Chapter.LOST_TIME,
    "warning",
    "some ranks compute longer than others in every step; the ratio and the ranks are named",
    "divide the work evenly: stages of a pipeline, shards, batches of equal cost",
    sections=(Section.RANKS, Section.DEVICE),
    is_advice=True,
)
TENSOR_EXPOSED = FindingKind(
    "tensor-exposed",
    Chapter.LOST_TIME,
    "warning",
    "the step waits for tensor parallelism: by nature, where the next operator needs the result at once, and by order,"
    " where what computes meanwhile is too short",
    "by nature: fewer ranks, a faster link, sequence parallelism, async tensor parallelism; by order: launch earlier",
    sections=(Section.UNITS,),
    is_advice=True,
    silences=(EXPOSED_COMMUNICATION,),
)
EXPERT_IMBALANCE = FindingKind(
    "expert-imbalance",
    Chapter.LOST_TIME,
    "warning",
    "an all-to-all gives one rank much more than the others, as a router of tokens to experts does; with what it costs",
    "limit what an expert takes (capacity factor), or balance the router by a loss",
    sections=(Section.EXPERTS,),
    is_advice=True,
)
SLOW_STAGE = FindingKind(
    "slow-stage",
    Chapter.LOST_TIME,
    "warning",
    "one stage of a pipeline computes longer than the others, which wait for it",
    "give it fewer layers, or find out why its rank is slow",
    sections=(Section.PIPELINES,),
    is_advice=True,
)
PIPELINE_BUBBLE = FindingKind(
    "pipeline-bubble",
    Chapter.LOST_TIME,
    "warning",
    "ranks of a pipeline are idle because the schedule has no work for them: its bubble; waiting for a slow stage and"
    " for messages is not counted",
    "more microbatches, or a schedule with several stages on each rank",
    sections=(Section.PIPELINES,),
    is_advice=True,
)
HEAVY_LAYER = FindingKind(
    "heavy-layer",
    Chapter.LOST_TIME,
    "warning",
    "one layer has much of the gradients, and they are exposed",
    "send fewer bytes of it (compressing hook; of an embedding, a sparse gradient), or freeze it",
    sections=(Section.BUCKETS,),
    is_advice=True,
)
BUCKET_OVER_CAP = FindingKind(
    "bucket-over-cap",
    Chapter.LOST_TIME,
    "info",
    "a bucket is larger than its cap; the sentence names the gradient that fills it",
    "split the parameter, or raise the cap",
    sections=(Section.BUCKETS,),
)
FIND_UNUSED_PARAMETERS = FindingKind(
    "find-unused-parameters",
    Chapter.LOST_TIME,
    "info",
    "what looking for unused parameters costs, and whether any was unused",
    "leave `find_unused_parameters` out if none was",
    sections=(Section.TRAFFIC,),
)
CONTENTION = FindingKind(
    "contention",
    Chapter.LOST_TIME,
    "info",
    "computing takes longer while communication runs",
    "use fewer communication threads or channels, or accept it: it counts as compute",
    sections=(Section.CONTENTION,),
)
LAUNCH_BOUND = FindingKind(
    "launch-bound",
    Chapter.LOST_TIME,
    "warning",
    "the device is idle while the host is in operators, Python and launches",
    "give the host less to launch: `torch.compile`, CUDA graphs, larger batches",
    sections=(Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
DATA_BOUND = FindingKind(
    "data-bound",
    Chapter.LOST_TIME,
    "warning",
    "the device, or a rank without one, waits while the host fetches a batch",
    "give the data loader more workers, or make the transforms cheaper",
    sections=(Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
HOST_STANDS_STILL = FindingKind(
    "host-stands-still",
    Chapter.LOST_TIME,
    "warning",
    "the device is idle while all threads of the process sleep or wait for something else than the device",
    "look for what the program waits for there: files, locks, other processes, `sleep`",
    sections=(Section.IDLE,),
    is_advice=True,
)
BLOCKING_COPIES = FindingKind(
    "blocking-copies",
    Chapter.LOST_TIME,
    "warning",
    "the device is idle while the host is in a copy that blocks it, mostly of memory that is not pinned, or catches up"
    " after that",
    "use `pin_memory=True` and `.to(device, non_blocking=True)`; read results back less often, into pinned memory",
    sections=(Section.COPIES, Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
EXPOSED_COPIES = FindingKind(
    "exposed-copies",
    Chapter.LOST_TIME,
    "warning",
    "copies take a part of the step in which no kernel runs",
    "use `pin_memory=True` and `non_blocking=True` where memory is not pinned; else copy beside computation, or less",
    sections=(Section.COPIES, Section.DEVICE),
    is_advice=True,
)
HOST_SYNCHRONIZES = FindingKind(
    "host-synchronizes",
    Chapter.LOST_TIME,
    "warning",
    "the device is idle while the host waits for it or reads a value from it, or catches up after that",
    "avoid `.item()`, `.cpu()` and printing tensors in each step",
    sections=(Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
ALLOCATION_BOUND = FindingKind(
    "allocation-bound",
    Chapter.LOST_TIME,
    "warning",
    "the device is idle while the host allocates or frees device memory",
    "let the caching allocator keep memory: look at its settings, and at fragmentation",
    sections=(Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
GARBAGE_COLLECTION = FindingKind(
    "garbage-collection",
    Chapter.LOST_TIME,
    "warning",
    "the device is idle while Python collects garbage",
    "call `gc.freeze()` after setup, and `gc.collect()` at a time of your choice",
    sections=(Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
IDLE_WHILE_QUEUED = FindingKind(
    "idle-while-queued",
    Chapter.LOST_TIME,
    "warning",
    "the trace shows nothing running on the device although work is queued; it does not tell why, and the device may be"
    " busy with what the profiler did not record",
    "look for kernels that the profiler does not record (CUDA graphs), other processes, waits between streams",
    sections=(Section.IDLE, Section.LAUNCHES),
    is_advice=True,
)
WAITING_FOR_REMOTE_CALLS = FindingKind(
    "waiting-for-remote-calls",
    Chapter.LOST_TIME,
    "warning",
    "the host waits for remote calls, and nothing else runs",
    "look at the workers and functions that the sentence names",
    sections=(Section.REMOTE_CALLS,),
    is_advice=True,
)

# Steps and buckets ----------------------------------------------------------------------------------------------------

NO_STEPS = FindingKind(
    "no-steps",
    Chapter.STEPS,
    "warning",
    "no step was found, so time cannot be broken down by step, only by profiler window where there is one",
    "call `t.step()` (or `prof.step()`) at the end of each iteration",
)
STEPS_BY_BACKWARD = FindingKind(
    "steps-by-backward",
    Chapter.STEPS,
    "info",
    "no optimizer was seen, so each backward counts as one step",
    "call `t.step()` if that is wrong",
    sections=(Section.STEPS,),
)
OPTIMIZERS_IN_TURN = FindingKind(
    "optimizers-in-turn",
    Chapter.STEPS,
    "info",
    "several optimizers update in turn, and each update counts as a step",
    "call `t.step()` to make an iteration one step",
    sections=(Section.STEPS,),
)
PAUSED_STEPS = FindingKind(
    "paused-steps",
    Chapter.STEPS,
    "info",
    "ddptrace itself held the training thread in these steps, to start, stop or save the profiler",
    "do not judge the program by these steps",
    sections=(Section.STEPS,),
)
WINDOW_ASKED = FindingKind(
    "window-asked",
    Chapter.STEPS,
    "info",
    "`ddptrace profile` asked for a profiler window while the job ran",
    "nothing",
    sections=(Section.STEPS,),
)
ANOTHER_TRAINING = FindingKind(
    "another-training",
    Chapter.STEPS,
    "warning",
    "another thread trains a model, too: of that one only the collectives are recorded",
    "trace one training per process",
)
LAYOUT_REBUILT = FindingKind(
    "layout-rebuilt",
    Chapter.STEPS,
    "info",
    "the reducer rebuilt its buckets in the order in which gradients become ready",
    "compare buckets of one layout only",
    sections=(Section.BUCKETS,),
)
BUCKET_LAYOUT_UNKNOWN = FindingKind(
    "bucket-layout-unknown",
    Chapter.STEPS,
    "warning",
    "the reducer's communication fits no known layout in some backwards, so it counts as collectives",
    "see [Limits](../limits.md)",
    sections=(Section.BUCKETS,),
)
BUCKETS_BY_ORDER = FindingKind(
    "buckets-by-order",
    Chapter.STEPS,
    "info",
    "nothing recorded the buckets: they are the all-reduces of each backward, by order",
    "record with `ddptrace.trace` to know parameters and ready times",
    sections=(Section.BUCKETS,),
)
NO_COMMUNICATION = FindingKind(
    "no-communication",
    Chapter.STEPS,
    "warning",
    "no collective was recorded on any rank",
    "wrap the model in `DistributedDataParallel`, trace after `init_process_group`, record with"
    " `ProfilerActivity.CUDA`, or name kernels with `--comm-kernel`",
    also=("info",),
    concerns_counts=True,
)
SINGLE_RANK = FindingKind(
    "single-rank",
    Chapter.STEPS,
    "info",
    "only one rank took part, or only one file is here",
    "start several ranks, or add the other files",
)
ONLY_REMOTE = FindingKind(
    "only-remote",
    Chapter.STEPS,
    "info",
    "this rank has no steps: it served remote calls",
    "nothing",
    sections=(Section.REMOTE_CALLS,),
)

# What the numbers are based on ----------------------------------------------------------------------------------------

APPROXIMATE_OVERLAP = FindingKind(
    "approximate-overlap",
    Chapter.BASIS,
    "info",
    "collectives were not seen running, so their overlap is approximate",
    "add a [profiler window](../how-to/profile-windows.md)",
    sections=(Section.MEASURED,),
    asks_for_window=True,
)
COARSE_COMPUTE = FindingKind(
    "coarse-compute",
    Chapter.BASIS,
    "info",
    "no step was profiled: compute is phases less waits",
    "add a profiler window",
    sections=(Section.MEASURED,),
    asks_for_window=True,
)
EXEC_MISSING = FindingKind(
    "exec-missing",
    Chapter.BASIS,
    "warning",
    "collectives were launched, and the file has no kernel of them",
    "record with `ProfilerActivity.CUDA`",
)
DEVICE_CAUGHT_UP = FindingKind(
    "device-caught-up",
    Chapter.BASIS,
    "info",
    "the device often waited for the host, and events do not show for how long",
    "add a profiler window, which shows the gaps",
    sections=(Section.MEASURED,),
    asks_for_window=True,
)
DEVICE_SHARED = FindingKind(
    "device-shared",
    Chapter.BASIS,
    "warning",
    "several ranks compute on one device, which serves one process after another",
    "give each rank another device, with `torch.cuda.set_device`",
    sections=(Section.MEASURED,),
    silences=(DEVICE_CAUGHT_UP,),
)
DEVICE_UNTIMED = FindingKind(
    "device-untimed",
    Chapter.BASIS,
    "info",
    "a CUDA graph was captured in some steps, or too many events were under way: their device times are unknown",
    "look at the other steps",
    sections=(Section.MEASURED,),
)
DEVICE_UNSEEN = FindingKind(
    "device-unseen",
    Chapter.BASIS,
    "warning",
    "neither a profiler window nor events show the device: what it computed and communicated is unknown",
    "add a profiler window, with `ProfilerActivity.CUDA`",
    sections=(Section.MEASURED,),
    silences=(EXEC_MISSING,),
    asks_for_window=True,
)
UNKNOWN_EXEC = FindingKind(
    "unknown-exec",
    Chapter.BASIS,
    "warning",
    "collectives left nothing that shows when they ran; they are missing from communication and overlap",
    "add a profiler window",
    also=("info",),
    sections=(Section.NOT_MEASURED,),
    asks_for_window=True,
)
PROFILED_STEPS_DIFFER = FindingKind(
    "profiled-steps-differ",
    Chapter.BASIS,
    "info",
    "steps under the profiler took much longer or shorter than the others",
    "nothing: the finding says whether the typical step divides as they do",
    sections=(Section.MEASURED,),
)
WITHOUT_LAUNCH = FindingKind(
    "without-launch",
    Chapter.BASIS,
    "info",
    "some device events have no launch in the file: most were queued before the window",
    "nothing; both populations are in `ranks`",
    sections=(Section.DEVICE,),
)
OUTSIDE_WINDOW = FindingKind(
    "outside-window",
    Chapter.BASIS,
    "info",
    "some device work lies outside every step's window",
    "nothing; the tables of ranks, streams and scopes count it",
    sections=(Section.DEVICE,),
)
EXEC_UNLINKED = FindingKind(
    "exec-unlinked",
    Chapter.BASIS,
    "warning",
    "collectives ran in the window, but the backend's ranges cannot be assigned to them",
    "nothing; their evidence is weaker",
)
EXEC_UNCLAIMED = FindingKind(
    "exec-unclaimed",
    Chapter.BASIS,
    "info",
    "kernels or ranges of communication belong to no recorded call; such kernels count as communication of their step",
    "nothing",
)
LAUNCH_MISSING = FindingKind(
    "launch-missing",
    Chapter.BASIS,
    "info",
    "the launches of some communication kernels are not in the file: their queue delay is a lower bound",
    "nothing",
)

# Across ranks ---------------------------------------------------------------------------------------------------------

DESYNC = FindingKind(
    "desync",
    Chapter.RANKS,
    "error",
    "ranks make different calls; the sentence says which, and on which line",
    "make the ranks call the same",
    also=("warning",),
    sections=(Section.COLLECTIVES,),
    hidden_until_end=("warning",),
)
RANK_BEHIND = FindingKind(
    "rank-behind",
    Chapter.RANKS,
    "warning",
    "a rank has made fewer calls: it died, hangs, or was still on its way",
    "`ddptrace diagnose`",
    sections=(Section.MATCHES,),
    hidden_until_end=("warning",),
)
MATCH_REFUSED = FindingKind(
    "match-refused",
    Chapter.RANKS,
    "warning",
    "the collectives of a group cannot be compared across ranks",
    "record the same whole steps on every rank",
    sections=(Section.MATCHES,),
)
REPLAY_OFF = FindingKind(
    "replay-off",
    Chapter.RANKS,
    "warning",
    "nobody is named for being late: the ranks' clocks do not fit who waited for whom, or ranks of a group are missing",
    "align the clocks, or analyze all ranks together",
    also=("info",),
    sections=(Section.MATCHES,),
)
CLOCK_DISAGREES = FindingKind(
    "clock-disagrees",
    Chapter.RANKS,
    "warning",
    "ranks of one machine have different clocks, as collectives prove",
    "nothing; ddptrace corrects it, and `--no-align` does not",
    sections=(Section.CLOCKS,),
)
CLOCK_NOT_FITTED = FindingKind(
    "clock-not-fitted",
    Chapter.RANKS,
    "warning",
    "no clock that runs evenly explains the records of this rank",
    "look for a clock that was set during the run, or for files of different runs",
    sections=(Section.CLOCKS,),
)
CLOCK_BY_PAIRS = FindingKind(
    "clock-by-pairs",
    Chapter.RANKS,
    "info",
    "nothing shows how far two clocks are apart: wall clocks are compared, which may be off by milliseconds",
    "nothing",
    sections=(Section.CLOCKS,),
)
CLOCK_BENT = FindingKind(
    "clock-bent",
    Chapter.RANKS,
    "info",
    "a clock did not run evenly, and was followed in several pieces",
    "nothing",
    sections=(Section.CLOCKS,),
)
CLOCK_STEPPED = FindingKind(
    "clock-stepped",
    Chapter.RANKS,
    "info",
    "the wall clock jumped during the run",
    "nothing; durations are not affected",
)
MESSAGES_DIFFER = FindingKind(
    "messages-differ",
    Chapter.RANKS,
    "warning",
    "the two ends of sends and receives do not agree, or only one end was recorded",
    "give both sides one size; trace both for the same time",
    also=("info",),
    sections=(Section.TRAFFIC,),
    concerns_counts=True,
)
COLLECTIVE_FAILED = FindingKind(
    "collective-failed",
    Chapter.RANKS,
    "error",
    "a collective failed, with this error",
    "follow the error",
    sections=(Section.COLLECTIVES,),
    silences=(MESSAGES_DIFFER,),
)

# Traffic --------------------------------------------------------------------------------------------------------------

SYNCHRONISED_OFTEN = FindingKind(
    "synchronised-often",
    Chapter.TRAFFIC,
    "warning",
    "gradients are sent more often than parameters are updated",
    "put all backwards but the last inside `no_sync()`",
    sections=(Section.TRAFFIC,),
    concerns_counts=True,
)
SYNCHRONISED_NEVER = FindingKind(
    "synchronised-never",
    Chapter.TRAFFIC,
    "warning",
    "an update followed backwards that sent nothing: the ranks drift apart",
    "leave `no_sync()` for the last backward",
    also=("info",),
    sections=(Section.TRAFFIC,),
    concerns_counts=True,
)
SYNCHRONISED_EARLY = FindingKind(
    "synchronised-early",
    Chapter.TRAFFIC,
    "warning",
    "gradients were sent, but not in the last backward before the update: the ranks drift apart",
    "put `no_sync()` around all backwards but the last",
    also=("info",),
    sections=(Section.TRAFFIC,),
    concerns_counts=True,
)

# How a run ended ------------------------------------------------------------------------------------------------------

PROCESS_DIED = FindingKind(
    "process-died",
    Chapter.END,
    "error",
    "a rank did not end its trace: it died or still runs",
    "`ddptrace diagnose`",
    sections=(Section.NOT_MEASURED,),
    silences=(MESSAGES_DIFFER,),
    hidden_until_end=("error",),
    concerns_counts=True,
)
ENDED_BY_EXCEPTION = FindingKind(
    "ended-by-exception",
    Chapter.END,
    "warning",
    "an exception ended the trace",
    "follow the exception",
)
ENDED_BY_EXIT = FindingKind(
    "ended-by-exit",
    Chapter.END,
    "warning",
    "`os._exit` ended the process; nothing after that was recorded",
    "nothing, if it was meant",
)
RESTARTED = FindingKind(
    "restarted",
    Chapter.END,
    "info",
    "the job was restarted: this is one of several attempts",
    "analyze `run/attempt-K` for another one",
)

# Records that are missing ---------------------------------------------------------------------------------------------

RECORDS_LET_GO = FindingKind(
    "records-let-go",
    Chapter.MISSING_RECORDS,
    "info",
    "the oldest records were removed to stay within the bound",
    "give `ddptrace.Keep(nbytes=…)` more",
    sections=(Section.NOT_MEASURED,),
    silences=(MESSAGES_DIFFER,),
    hidden_until_end=("info",),
    concerns_counts=True,
)
WINDOWS_LET_GO = FindingKind(
    "windows-let-go",
    Chapter.MISSING_RECORDS,
    "info",
    "the oldest profiler files were removed to stay within the bound",
    "give `ddptrace.Keep(nbytes=…)` more",
)
DESCRIPTIONS_LET_GO = FindingKind(
    "descriptions-let-go",
    Chapter.MISSING_RECORDS,
    "warning",
    "descriptions of reducers and layouts, and notes, were removed as well",
    "give `ddptrace.Keep(nbytes=…)` more",
    silences=(MESSAGES_DIFFER,),
)
STEPS_NOT_RECORDED = FindingKind(
    "steps-not-recorded",
    Chapter.MISSING_RECORDS,
    "info",
    "not every step was recorded, as `ddptrace.Keep(every=…)` asks",
    "nothing",
    sections=(Section.NOT_MEASURED,),
    silences=(MESSAGES_DIFFER,),
    hidden_until_end=("info",),
    concerns_counts=True,
)
RECORDS_DROPPED = FindingKind(
    "records-dropped",
    Chapter.MISSING_RECORDS,
    "warning",
    "records were lost: no room, or they came too fast",
    "free the disk, or use a faster one",
    sections=(Section.NOT_MEASURED,),
    silences=(MESSAGES_DIFFER,),
    concerns_counts=True,
    loses_records=True,
    spoils_benchmark=True,
)
RECORDS_LOST = FindingKind(
    "records-lost",
    Chapter.MISSING_RECORDS,
    "warning",
    "there was no room for more records",
    "free the disk",
    spoils_benchmark=True,
)
RECORDS_TORN = FindingKind(
    "records-torn",
    Chapter.MISSING_RECORDS,
    "warning",
    "records were torn or overwritten, and are left out",
    "nothing",
    sections=(Section.NOT_MEASURED,),
    silences=(MESSAGES_DIFFER,),
    concerns_counts=True,
    loses_records=True,
)
RECORDS_DAMAGED = FindingKind(
    "records-damaged",
    Chapter.MISSING_RECORDS,
    "warning",
    "a record file is damaged; what is whole is used",
    "copy the run again",
    silences=(MESSAGES_DIFFER,),
    concerns_counts=True,
    loses_records=True,
)
NAMES_LOST = FindingKind(
    "names-lost",
    Chapter.MISSING_RECORDS,
    "warning",
    "more names, groups or threads than there is room for",
    "give `ddptrace.Keep(nbytes=…)` more",
    silences=(MESSAGES_DIFFER,),
    spoils_benchmark=True,
)
DESCRIPTION_LOST = FindingKind(
    "description-lost",
    Chapter.MISSING_RECORDS,
    "warning",
    "the description of a reducer, layout or group did not fit into the bound",
    "give `ddptrace.Keep(nbytes=…)` more",
    silences=(MESSAGES_DIFFER,),
    spoils_benchmark=True,
)
WATCH_INCOMPLETE = FindingKind(
    "watch-incomplete",
    Chapter.MISSING_RECORDS,
    "warning",
    "records of a rank that `ddptrace watch` follows are missing",
    "`ddptrace analyze` says why",
    is_advice=True,
)
WINDOW_MISSED = FindingKind(
    "window-missed",
    Chapter.MISSING_RECORDS,
    "warning",
    "a rank did not open a profiler window that `when_slow` or `ddptrace profile` asked for",
    "do what the sentence says; the windows of the other ranks are used",
)
DISK_SHORT = FindingKind(
    "disk-short",
    Chapter.MISSING_RECORDS,
    "warning",
    "the disk has no more room: from here on, the oldest records make room for new ones",
    "free the disk",
)
KEEPER_FAILED = FindingKind(
    "keeper-failed",
    Chapter.MISSING_RECORDS,
    "warning",
    "keeping the records failed; some may be lost",
    "look at the error in the sentence",
)
WINDOW_NOT_KEPT = FindingKind(
    "window-not-kept",
    Chapter.MISSING_RECORDS,
    "warning",
    "there was no room for a profiler file",
    "free the disk",
)
WINDOW_EMPTY = FindingKind(
    "window-empty",
    Chapter.MISSING_RECORDS,
    "warning",
    "the profiler's file holds no events of work",
    "profile steps that train",
)
WINDOW_UNREADABLE = FindingKind(
    "window-unreadable",
    Chapter.MISSING_RECORDS,
    "warning",
    "a profiler file cannot be read: its steps are judged without it",
    "record again",
)

# Parts that switched themselves off -----------------------------------------------------------------------------------

TAP_FAILED = FindingKind(
    "tap-failed",
    Chapter.SWITCHED_OFF,
    "warning",
    "the dispatcher tap does not work with this torch: collectives that C++ issues are not seen",
    "use a [tested version of torch](../effect-on-training.md#versions-of-torch)",
    sections=(Section.NOT_MEASURED,),
    silences=(SYNCHRONISED_OFTEN, SYNCHRONISED_NEVER, SYNCHRONISED_EARLY),
    concerns_counts=True,
    is_part_failed=True,
)
COLLECTIVES_MISSING = FindingKind(
    "collectives-missing",
    Chapter.MISSING_RECORDS,
    "info",
    "collectives were not recorded: it is unknown how steps divide that no profiler window of a device shows",
    "see which other finding says why; profile a GPU (profile=...), whose windows show kernels that communicate",
    also=("warning",),
    sections=(Section.NOT_MEASURED,),
)
DEVICE_EVENTS_LOST = FindingKind(
    "device-events-lost",
    Chapter.MISSING_RECORDS,
    "warning",
    "events on the device did not end during the trace, or were not recorded: some steps have no device times",
    "look for a stream that never ends; end the trace after the device's last work",
    sections=(Section.NOT_MEASURED,),
)
STOPPED_WATCHING: Final = "ddptrace stopped watching"
"""How a message of SURFACE_FAILED begins; the surface's name follows."""
SURFACE_FAILED = FindingKind(
    "surface-failed",
    Chapter.SWITCHED_OFF,
    "warning",
    "a part of ddptrace failed and stopped watching",
    "report it; training is not affected",
    sections=(Section.NOT_MEASURED,),
    silences=(MESSAGES_DIFFER,),
    concerns_counts=True,
    spoils_benchmark=True,
    is_part_failed=True,
)
COMPILED_REFUSED = FindingKind(
    "compiled-refused",
    Chapter.SWITCHED_OFF,
    "warning",
    "other users could have written the library of `ddptrace compile`, so it was not loaded",
    "do what the sentence says: see [What is loaded](../security.md#code-that-is-loaded)",
)
COMPILED_FAILED = FindingKind(
    "compiled-failed",
    Chapter.SWITCHED_OFF,
    "warning",
    "the library of `ddptrace compile` cannot be loaded",
    "run `ddptrace compile` again",
)
PATCH_KEPT = FindingKind(
    "patch-kept",
    Chapter.SWITCHED_OFF,
    "warning",
    "another program replaced a function that ddptrace had patched; it was left as it is",
    "nothing",
)
PROFILER_GAVE_WAY = FindingKind(
    "profiler-gave-way",
    Chapter.SWITCHED_OFF,
    "warning",
    "the program ran its own profiler when a window was due: ddptrace opens no more windows",
    "nothing; the program's windows are used",
)
GAVE_WAY = FindingKind(
    "gave-way",
    Chapter.SWITCHED_OFF,
    "warning",
    "the recording of `ddptrace.run` ended because the program entered `ddptrace.trace` itself",
    "analyze the program's own run directory",
)

# Run directories ------------------------------------------------------------------------------------------------------

RANK_MISSING = FindingKind(
    "rank-missing",
    Chapter.DIRECTORIES,
    "warning",
    "ranks have no folder or no trace here",
    "copy their folders or files here",
    also=("info",),
    sections=(Section.NOT_MEASURED,),
    concerns_counts=True,
)
RANK_EMPTY = FindingKind(
    "rank-empty",
    Chapter.DIRECTORIES,
    "error",
    "a rank's folder holds no records",
    "copy it again",
    silences=(MESSAGES_DIFFER,),
    concerns_counts=True,
)
RANK_UNKNOWN = FindingKind(
    "rank-unknown",
    Chapter.DIRECTORIES,
    "warning",
    "a rank's number is not known; the sentence says which it was given",
    "name files `rank-0.json`, `rank-1.json`, …",
)
OTHER_RUN = FindingKind(
    "other-run",
    Chapter.DIRECTORIES,
    "warning",
    "a rank's records are of another run",
    "remove them, or give every rank the same path",
)
OTHER_RANK = FindingKind(
    "other-rank",
    Chapter.DIRECTORIES,
    "error",
    "a folder holds what another rank recorded",
    "put the ranks' folders back as they were",
)
DAMAGED = FindingKind(
    "damaged",
    Chapter.DIRECTORIES,
    "error",
    "what `ddptrace diagnose` reads is damaged",
    "copy the run again",
)
NO_MANIFEST = FindingKind(
    "no-manifest",
    Chapter.DIRECTORIES,
    "warning",
    "the manifest is missing or unreadable: size and zero are taken from the ranks",
    "copy the manifest here",
)
NEWER_SCHEMA = FindingKind(
    "newer-schema",
    Chapter.DIRECTORIES,
    "info",
    "a newer ddptrace wrote the run; what is unknown is ignored",
    "update ddptrace",
)
REFUSED = FindingKind(
    "refused",
    Chapter.DIRECTORIES,
    "warning",
    "rank 0 refused the run directory after this rank had begun",
    "give every rank an empty directory",
)
NO_RANK = FindingKind(
    "no-rank",
    Chapter.DIRECTORIES,
    "warning",
    "the rank could not be learned",
    "trace after `init_process_group`, or start with torchrun",
)
NO_META = FindingKind(
    "no-meta",
    Chapter.DIRECTORIES,
    "warning",
    "`meta.json` could not be written",
    "free the disk",
)
NOT_SETTLED = FindingKind(
    "not-settled",
    Chapter.DIRECTORIES,
    "warning",
    "the ranks did not agree on the run in time",
    "nothing, if the ranks' folders are right",
)

# Traces recorded by others --------------------------------------------------------------------------------------------

TRACE_UNREADABLE = FindingKind(
    "trace-unreadable",
    Chapter.OTHERS,
    "error",
    "a file cannot be read",
    "record again, or remove it",
)
TRACE_DAMAGED = FindingKind(
    "trace-damaged",
    Chapter.OTHERS,
    "warning",
    "a file is truncated or damaged; what could be read is shown",
    "record again",
)
TRACE_EMPTY = FindingKind(
    "trace-empty",
    Chapter.OTHERS,
    "warning",
    "a file holds no events of work",
    "record some steps with CPU and GPU activity",
)
TRACE_TWICE = FindingKind(
    "trace-twice",
    Chapter.OTHERS,
    "info",
    "a trace is there in several forms, such as packed and unpacked, and was read once",
    "nothing",
)
NCCL_LOG_LEFT_OUT = FindingKind(
    "nccl-log-left-out",
    Chapter.OTHERS,
    "info",
    "logs in the run's folder that may be NCCL's are too large to be read with the run, or cannot be opened",
    "read them by `ddptrace nccl`",
)
NOT_A_TRACE = FindingKind(
    "not-a-trace",
    Chapter.OTHERS,
    "info",
    "files that are no Kineto traces are left out",
    "nothing",
)
FOLDER_UNREADABLE = FindingKind(
    "folder-unreadable",
    Chapter.OTHERS,
    "warning",
    "a folder cannot be read and is left out",
    "check its permissions",
)
RANK_CLAIMED_TWICE = FindingKind(
    "rank-claimed-twice",
    Chapter.OTHERS,
    "warning",
    "two files say that they are of the same rank",
    "name the files by their ranks",
)
SEVERAL_PROCESSES = FindingKind(
    "several-processes",
    Chapter.OTHERS,
    "warning",
    "the files of a rank come from different processes",
    "give one run's files",
)
STEPS_RENUMBERED = FindingKind(
    "steps-renumbered",
    Chapter.OTHERS,
    "info",
    "files of a rank number their steps alike; later ones were renumbered",
    "nothing",
)
COMM_KERNEL_UNUSED = FindingKind(
    "comm-kernel-unused",
    Chapter.OTHERS,
    "warning",
    "no kernel has a name that `--comm-kernel` gives",
    "look at the names in the trace",
)

COMM_KERNEL_SUSPECTED = FindingKind(
    "comm-kernel-suspected",
    Chapter.OTHERS,
    "warning",
    "kernels that no rule knows run long in ranges or on streams that are named after communication; they count as"
    " compute",
    "if they communicate, name them with `--comm-kernel`",
    sections=(Section.COLLECTIVES, Section.DEVICE),
    is_advice=True,
    silences=(NO_COMMUNICATION,),
)

# Comparisons ----------------------------------------------------------------------------------------------------------

FEW_RUNS = FindingKind(
    "few-runs",
    Chapter.COMPARISONS,
    "warning",
    "too few runs to know how runs differ by chance",
    "give several runs a side, in turns: `--repeat 6`",
)
SHORT_RUNS = FindingKind(
    "short-runs",
    Chapter.COMPARISONS,
    "warning",
    "a run has too few steps to know how steps differ by chance",
    "record 17 steps or more",
)
NOT_IN_TURNS = FindingKind(
    "not-in-turns",
    Chapter.COMPARISONS,
    "warning",
    "all runs of one side ran before those of the other",
    "let them take turns: `--repeat` does",
)
MEASURED_APART = FindingKind(
    "measured-apart",
    Chapter.COMPARISONS,
    "warning",
    "the sides were not measured in the same way: parts, buckets and ranks are left out",
    "record both with a profiler window, or both without",
)
TOLD_OF_ONE_SIDE = FindingKind(
    "told-of-one-side",
    Chapter.COMPARISONS,
    "info",
    "`ddptrace analyze` has this finding for every run of one side, and for none of the other",
    "read that finding",
)


# ----------------------------------------------------------------------------------------------------------------------

KINDS: Final[Mapping[str, FindingKind]] = {
    kind.code: kind for kind in list(globals().values()) if isinstance(kind, FindingKind)
}
"""All kinds by code, in the order of the reference."""

UNKNOWN: Final = FindingKind(
    "note", Chapter.OTHERS, "warning", "a note of another version of ddptrace", "read the sentence"
)
"""Not in `KINDS`: no code of ddptrace makes it."""
