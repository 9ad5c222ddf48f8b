"""The sheet of `groups`: tables, curves and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.bench.experiment import Measured, Section, merged_setup
from ddptrace.bench.experiments.groups_verdict import Point, Verdict, verdict
from ddptrace.bench.timing import Spread, interval_head, ms_interval, spread, spread_line
from ddptrace.render.sheet import Chart, Grid, Line
from ddptrace.render.words import EVIDENCE
from ddptrace.schema import Evidence
from ddptrace.units import counted, duration, millis, percent, rate, size, three_figures

SHAPES: Final = {"pairs": "disjoint pairs of ranks", "same": "groups over the same two ranks"}
NOTE: Final = (
    "step: of all all-reduces, on the slowest rank, median over the rounds, untraced. all groups: bytes that all ranks "
    "send per second. cores busy: by the ranks, on the busiest host. ready, no core: mean number of threads that are "
    "ready without a core. From a traced run without computation: comm, from the first launch to the last end "
    "on one rank; exec, one all-reduce; behind, its wait for a worker thread of its group."
)
TUNED_NOTE: Final = (
    "All asynchronous. OMP_NUM_THREADS and GLOO_SOCKET_IFNAME are set in separate jobs, so that × default compares two "
    "jobs and a few percent are noise. Gloo's threads are tried within the same job. For each interface in a list a "
    "group gets a connection, an I/O thread and two worker threads. new_group has no option for Gloo's threads: these "
    "groups are made with ProcessGroupGloo's own options."
)
NCCL: Final = (
    ("NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS", "channels of each communicator, each a block on the GPU"),
    ("NCCL_NTHREADS", "threads of each of those blocks"),
    ("NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD", "processor threads and sockets of each connection over TCP"),
    ("NCCL_SOCKET_IFNAME", "network interfaces; several are used at once"),
    ("NCCL_CROSS_NIC, NCCL_IB_QPS_PER_CONNECTION", "how traffic is spread over network cards and queues"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "hardware queues, which the streams of several groups share if there are few"),
    ("TORCH_NCCL_HIGH_PRIORITY", "whether the communicators' streams precede those that compute"),
)


@dataclass(frozen=True, slots=True)
class MeasuredArrangement:
    """One arrangement as one job measured it."""

    shape: str
    mode: str
    groups: int
    threads: int | None
    spread: Spread
    point: Point
    comm_ns: float | None

    @property
    def row(self) -> tuple[str, str]:
        return f"{self.groups} {self.shape}", self.mode


def title(options: Any, jobs: Sequence[Measured]) -> str:
    return f"Many process groups at once: {counted(options.calls, 'all-reduce')} of {size(options.nbytes)} in each"


def setup(options: Any, jobs: Sequence[Measured]) -> Sequence[tuple[str, str]]:
    """Return the setup of the jobs in the environment as it is, and the evidence of all jobs."""
    return (*merged_setup(options, _base(options, jobs)), ("executions from", _evidence(jobs)))


def _base(options: Any, jobs: Sequence[Measured]) -> list[Measured]:
    """Return the jobs in the environment as it is."""
    return [job for job in jobs if job["environment"] == options.environment]


def sections(options: Any, jobs: Sequence[Measured]) -> Iterator[Section]:
    """Yield a section for each number of ranks, with the jobs that tried another environment on as many ranks."""
    base = _base(options, jobs)
    for job in base:
        found = points(job, options.nbytes, options.calls)
        where = f", {job['setup']['ranks']}" if len(base) > 1 else ""
        others = [other for other in jobs if other not in base and other["setup"]["ranks"] == job["setup"]["ranks"]]
        yield _section(found, [(other, points(other, options.nbytes, options.calls)) for other in others], where)
    yield Section((), (_not_run(),))


def _section(
    found: Sequence[MeasuredArrangement],
    others: Sequence[tuple[Measured, list[MeasuredArrangement]]],
    where: str,
) -> Section:
    swept = [each for each in found if each.threads is None]
    verdicts = [_verdict(each, swept) for each in swept]
    rows = tuple(_row(each, judged) for each, judged in zip(swept, verdicts, strict=True))
    words = (*_answers(swept, verdicts), *_modes_words(swept), *_tuned_words(found, where))
    grids = (
        Grid(f"Groups at once{where}", _heads(swept), rows, NOTE),
        _reasons(swept, verdicts, where),
        _tuned(found, others, where),
    )
    return Section(words, grids, _charts(swept, where))


def _evidence(jobs: Sequence[Measured]) -> str:
    """Return the evidence for executions in the traced runs."""
    seen = {call["evidence"] for job in jobs for call in job["calls"].values() if call is not None}
    codes = sorted({code for evidence in seen for code in evidence.split("+") if code})
    return "; ".join(EVIDENCE[Evidence(code)] for code in codes) or "nothing: the traces show no execution"


def points(job: Measured, nbytes: int, calls: int) -> list[MeasuredArrangement]:
    """Return what a job measured of each arrangement. In a group of two each rank sends the whole tensor once."""
    found = []
    for each in job["arrangements"]:
        name, traced = each["name"], job["calls"][each["name"]]
        times, sent = spread(job["times_ns"][name]), 2 * each["groups"] * calls * nbytes
        parts = {key: value for key, value in (traced or {}).items() if key != "evidence"}
        point = Point(each["groups"], times.median, sent, **parts, **job["loads"][name], on_gpu=job["on_gpu"])
        comm = None if traced is None else traced["span_ns"]
        found.append(
            MeasuredArrangement(each["shape"], each["mode"], each["groups"], each["threads"], times, point, comm)
        )
    return found


def _heads(swept: Sequence[MeasuredArrangement]) -> tuple[str, ...]:
    measured = ("step ms", interval_head(each.spread for each in swept), "× fewest", "all groups", "cores busy")
    return "groups", "at once", *measured, "ready, no core", "comm ms", "exec ms", "behind ms", "why"


def _alike(each: MeasuredArrangement, swept: Sequence[MeasuredArrangement]) -> list[MeasuredArrangement]:
    return [other for other in swept if (other.shape, other.mode) == (each.shape, each.mode)]


def _verdict(each: MeasuredArrangement, swept: Sequence[MeasuredArrangement]) -> Verdict:
    """Judge against the fewest groups of the same shape and mode. The ceiling is the most bytes per second of any other
    arrangement of the shape, since a rate that still grows is not at its ceiling."""
    others = (other.point.bytes_per_s for other in swept if other.shape == each.shape and other is not each)
    most = max(others, default=each.point.bytes_per_s)
    return verdict(_alike(each, swept)[0].point, each.point, most)


def _row(each: MeasuredArrangement, judged: Verdict) -> tuple[str, ...]:
    point, time = each.point, each.spread
    why = "-" if judged.growth == 1 else judged.cause.value  # 1: the fewest, against themselves
    return (
        *each.row,
        millis(time.median),
        ms_interval(time),
        three_figures(judged.growth),
        rate(point.bytes_per_s),
        percent(point.cpu_ratio),
        "-" if point.ready is None else three_figures(point.ready),
        millis(each.comm_ns),
        millis(point.exec_ns),
        millis(point.behind_ns),
        why,
    )


def _reasons(swept: Sequence[MeasuredArrangement], verdicts: Sequence[Verdict], where: str) -> Grid:
    more = [(each, judged) for each, judged in zip(swept, verdicts, strict=True) if each is not _alike(each, swept)[0]]
    rows = tuple((*each.row, judged.words) for each, judged in more)
    return Grid(f"Why, number by number{where}", ("groups", "at once", "against the fewest groups"), rows)


def _answers(swept: Sequence[MeasuredArrangement], verdicts: Sequence[Verdict]) -> list[str]:
    """Say why the most groups of each shape and mode take longer."""
    last = {(each.shape, each.mode): (each, judged) for each, judged in zip(swept, verdicts, strict=True)}
    return [_answer(each, judged, _alike(each, swept)) for each, judged in last.values()]


def _answer(each: MeasuredArrangement, judged: Verdict, alike: Sequence[MeasuredArrangement]) -> str:
    asked = f"{each.groups} {SHAPES[each.shape]}, {each.mode}hronously"
    if len(alike) < 2:
        return f"{asked}: {duration(each.spread.median)}; a single number of groups shows no growth."
    few = alike[0]
    if few.spread.high >= each.spread.low and few.spread.low <= each.spread.high:
        return f"{asked}, against {few.groups}: no difference beyond the noise ({three_figures(judged.growth)} times)."
    return f"{asked}, against {few.groups}, {three_figures(each.groups / few.groups)} times as many: {judged.words}"


def _modes_words(swept: Sequence[MeasuredArrangement]) -> list[str]:
    """Say what launching all at once gains, at the most groups of each shape."""
    most = {(each.shape, each.mode): each for each in swept}
    return [_mode_words(most[shape, "sync"], most[shape, "async"]) for shape in SHAPES]


def _mode_words(sync: MeasuredArrangement, at_once: MeasuredArrangement) -> str:
    apart = at_once.spread.high < sync.spread.low or sync.spread.high < at_once.spread.low
    times = three_figures(at_once.spread.median / sync.spread.median)
    beyond = "" if apart else ", no difference beyond the noise"
    asked = f"{sync.groups} {SHAPES[sync.shape]}"
    return f"Launched all at once instead of one after the other, {asked} take {times} times the time{beyond}."


def _tuned_words(found: Sequence[MeasuredArrangement], where: str) -> list[str]:
    """Say what Gloo's threads gain, which are tried in the same job as the default."""
    sentences = []
    for shape in SHAPES:
        tried = [each for each in found if each.shape == shape and each.threads is not None]
        default = [each for each in found if each.shape == shape and each.threads is None and each.mode == "async"]
        if tried and default:
            best = min(tried, key=lambda each: each.spread.median)
            sentences.append(_threads_words(best, default[-1], where))
    return sentences


def _threads_words(best: MeasuredArrangement, default: MeasuredArrangement, where: str) -> str:
    most = f"{best.groups} {SHAPES[best.shape]}{where}: {counted(best.threads or 0, 'worker thread')} in each"
    times = three_figures(best.spread.median / default.spread.median)
    if best.spread.high < default.spread.low:
        return f"{most} is the best number tried and takes {times} times as long as the default."
    return f"{most} is the best number tried, {times} times the default's time: no difference beyond the noise."


def _tuned(
    found: Sequence[MeasuredArrangement], others: Sequence[tuple[Measured, list[MeasuredArrangement]]], where: str
) -> Grid:
    defaults = {(each.shape, each.groups): each for each in found if each.threads is None and each.mode == "async"}
    tried = [("default", each) for each in found if each is _most(defaults, each)]
    tried += [(f"{counted(each.threads, 'Gloo thread')}", each) for each in found if each.threads is not None]
    tried += [(job["environment"], each) for job, found in others for each in found]
    tried.sort(key=lambda named: list(SHAPES).index(named[1].shape))
    rows = tuple(_tuned_row(what, each, defaults[each.shape, each.groups]) for what, each in tried)
    interval = interval_head(each.spread for _, each in tried)
    heads = ("groups", "tried", "step ms", interval, "× default", "cores busy", "behind ms")
    return Grid(f"What can be tuned{where}", heads, rows, TUNED_NOTE)


def _most(defaults: dict[tuple[str, int], MeasuredArrangement], each: MeasuredArrangement) -> MeasuredArrangement:
    """Return the default with the most groups of the same shape."""
    return defaults[each.shape, max(groups for shape, groups in defaults if shape == each.shape)]


def _tuned_row(what: str, each: MeasuredArrangement, default: MeasuredArrangement) -> tuple[str, ...]:
    time, times = each.spread, three_figures(each.spread.median / default.spread.median)
    rest = (times, percent(each.point.cpu_ratio), millis(each.point.behind_ns))
    return each.row[0], what, millis(time.median), ms_interval(time), *rest


def _not_run() -> Grid:
    note = "Not run here. Each is an environment variable of the job: start the job with it set to try it."
    return Grid("NCCL's own variables", ("variable", "what it sets"), NCCL, note)


def _charts(swept: Sequence[MeasuredArrangement], where: str) -> list[Chart]:
    kinds = {(each.shape, each.mode): f"{each.shape}, {each.mode}" for each in swept}
    curves = {name: [each for each in swept if (each.shape, each.mode) == kind] for kind, name in kinds.items()}
    times = tuple(_times(name, curve) for name, curve in curves.items())
    sums = tuple(_sums(name, curve) for name, curve in curves.items())
    busy = tuple(
        Line(name, tuple(each.groups for each in curve), tuple(100 * each.point.cpu_ratio for each in curve))
        for name, curve in curves.items()
    )
    return [
        Chart(
            f"Time of a step{where}",
            "groups at once",
            "ms",
            times,
            caption="Untraced, with its interval over the rounds.",
        ),
        Chart(f"All groups together{where}", "groups at once", "MB/s", sums),
        Chart(f"Cores busy{where}", "groups at once", "%", busy),
    ]


def _times(name: str, curve: Sequence[MeasuredArrangement]) -> Line:
    return spread_line(name, [each.groups for each in curve], [each.spread for each in curve], 1e6)


def _sums(name: str, curve: Sequence[MeasuredArrangement]) -> Line:
    return Line(name, tuple(each.groups for each in curve), tuple(each.point.bytes_per_s / 1e6 for each in curve))
