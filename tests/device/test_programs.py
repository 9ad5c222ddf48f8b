"""Every program that the device must run, and what ddptrace makes of it, held against what ran on the device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import ddptrace
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.units.plan import Plan, ways_of
from ddptrace.analysis.units.script import script_of
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.load.run import read_run
from ddptrace.load.tables import Run
from ddptrace.schema import Evidence, UnitRole
from tests.device.conftest import Found, RunProgram
from tests.device.device import HERE
from tests.device.programs.strategies import LAYERS, STEPS, STRATEGIES, WIDTH, Strategy
from tests.device.truth import (
    PARTS,
    WAITS,
    WORK,
    Json,
    charged,
    ends_of_steps,
    entries_of,
    file_of,
    idle_by_cause,
    in_launch_order,
    owners_in,
    parts,
    told_by,
    union_ns,
    work_of,
)

ACTIVE = 3  # steps of the window
CLOCK_PAIR_NS = 10_000  # of the pair that ties the host's clock to Unix time
PROGRAMS = [(name, ranks) for name, strategy in STRATEGIES.items() for ranks in strategy.ranks]


@dataclass(frozen=True)
class Program:
    """One program that has run: its `run/`, and what its ranks told."""

    name: str
    ranks: int
    out: Path

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[self.name]

    @functools.cached_property
    def result(self) -> Result:
        return ddptrace.analyze(self.out / "run", align=False)

    @functools.cached_property
    def run(self) -> Run:
        return read_run(self.out / "run")

    @functools.cached_property
    def told(self) -> list[Json]:
        return [told_by(self.out, rank) for rank in range(self.ranks)]

    @functools.cached_property
    def files(self) -> list[Json]:
        return [file_of(self.out / "run" / f"rank-{rank:05d}" / "kineto-0.json.gz") for rank in range(self.ranks)]

    @functools.cached_property
    def work(self) -> list[list[Json]]:
        return [work_of(told["ledger"], file) for told, file in zip(self.told, self.files, strict=True)]

    @functools.cached_property
    def zeros_ns(self) -> list[int]:
        """By rank, the instant from which ddptrace counts: all executions of collectives agree on it."""
        return [self._zero(rank) for rank in range(self.ranks)]

    def _zero(self, rank: int) -> int:
        pairs = [(row.exec_start_at_ns, kernel["begin_ns"]) for row, kernel in self.joined(rank)]
        (zero,) = {begin - at for at, begin in pairs if at is not None}
        return zero

    def joined(self, rank: int) -> Iterator[tuple[Any, Json]]:
        """Yield each profiled collective of a rank with the kernel that it must be joined to: both in launch order."""
        rows = self._whole(rank)
        kernels = in_launch_order(self.work[rank], "collective")
        if not HERE.has_ledger:  # the file has the profiled ones only
            rows = [row for row in rows if row.evidence is Evidence.DEVICE]
            kernels = [kernel for kernel in kernels if kernel["is_launched"]]  # not of the steps before the window
        if len(rows) > len(kernels):  # a batch of sends and receives is one kernel, launched after all of them
            launched = [kernel["launched_ns"] for kernel in kernels]
            starts = [self.run.zero_unix_ns + row.launch_at_ns for row in rows]
            kernels = [kernels[bisect(launched, start)] for start in starts]
        pairs = zip(rows, kernels, strict=True)
        yield from (pair for pair in pairs if pair[0].evidence is Evidence.DEVICE)

    def _whole(self, rank: int) -> list[Any]:
        """Each collective of a rank once, to the end of its last part: one that runs across the end of a step has a row
        in both."""
        rows = [row for row in self.result.collectives if row.rank == rank]
        ends = {row.seq: row.exec_end_at_ns for row in rows}
        return [dataclasses.replace(row, exec_end_at_ns=ends[row.seq]) for row in rows if row.part == 0]

    def steps(self, rank: int) -> list[Any]:
        return [row for row in self.result.steps if row.rank == rank and row.profiled]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda program: "-".join(map(str, program)))
def program(
    on_any_device: RunProgram, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Program:
    name, ranks = request.param
    out = tmp_path_factory.mktemp(f"{name}-{ranks}")
    on_any_device("strategy.py", out / "run", out, name, ranks=ranks)
    return Program(name, ranks, out)


def test_the_program_trains_as_on_the_cpu_and_as_without_a_trace(program: Program, found: Found) -> None:
    for told in program.told:
        apart = program.strategy.gpu_error if HERE.is_gpu else 0.0
        assert told["losses"] == (pytest.approx(told["untraced"], rel=apart) if apart else told["untraced"])
        if told["on_cpu"] is not None:
            error = max(program.strategy.relative_error, HERE.relative_error)
            assert told["losses"] == pytest.approx(told["on_cpu"], rel=error)
    losses = program.told[-1]["losses"]
    assert len(losses) == STEPS == len(set(losses))
    found(losses=losses, on_cpu=program.told[-1]["on_cpu"])


def test_the_profilers_file_has_what_the_ledger_has(program: Program, found: Found) -> None:
    """All that was launched from the first to the last work in the file."""
    if not HERE.has_ledger:
        pytest.skip("the file is all that tells of a GPU")
    for told, file in zip(program.told, program.files, strict=True):
        names = ("correlation", "name", "stream", "begin_ns", "end_ns", "called_ns", "returned_ns")
        in_file = {tuple(entry[name] for name in names) for entry in entries_of(file)}
        numbers = [number for number, *_ in in_file]
        window = range(min(numbers), max(numbers) + 1)
        ledger = [one for one in told["ledger"] if one["kind"] in WORK and one["correlation"] in window]
        assert {tuple(entry[name] for name in names) for entry in ledger} == in_file
        assert len(in_file) == len(ledger) > ACTIVE * LAYERS
        found(work=len(ledger))


def test_each_steps_parts_are_what_ran(program: Program, found: Found) -> None:
    for rank in range(program.ranks):
        rows = program.steps(rank)
        hosts = [program.zeros_ns[rank] + row.end_at_ns for row in rows]
        ends = ends_of_steps(program.work[rank], hosts)
        expected = [parts(program.work[rank], *span) for span in itertools.pairwise(ends)]
        told = [{name: getattr(row, name) for name in PARTS} for row in rows[1:]]
        assert told == expected and len(rows) == ACTIVE
        assert all(one["comm_ns"] > 0 for one in expected)
        assert all(sum(row.evidence is Evidence.DEVICE for row in rows) == ACTIVE for _ in expected)
        found(**expected[-1])


ALONG: Final = {"fsdp1": "fsdp", "fsdp2": "fsdp", "tensor": "tp", "pipeline": "pp", "all_to_all": "other"}
"""The dimension along which a program communicates; those that are missing here are data-parallel. That an exchange of
the program's own serves experts, nothing tells."""


def test_each_dimension_of_a_step_costs_what_its_collectives_were_charged(program: Program, found: Found) -> None:
    along = Counter[str]()
    for rank in range(program.ranks):
        rows = program.steps(rank)
        of = {id(kernel): row.dimension for row, kernel in program.joined(rank)}
        ends = ends_of_steps(program.work[rank], [program.zeros_ns[rank] + row.end_at_ns for row in rows])
        for row, span in zip(rows[1:], itertools.pairwise(ends), strict=True):
            expected = Counter[str]()
            for kernel, ns in charged(program.work[rank], *span):
                expected[of[id(kernel)]] += ns
            told = Counter[str]()
            for one in program.result.dimensions:
                if (one.rank, one.step) == (rank, row.step):
                    told[one.dimension] += one.exposed_charged_ns
                    assert (
                        one.peer_wait_ns + one.bubble_ns + one.transfer_ns + one.unmatched_ns == one.exposed_charged_ns
                    )
            assert +told == +expected and sum(told.values()) == row.exposed_comm_ns
            along += expected
    assert along.most_common(1)[0][0] == ALONG.get(program.name, "dp")
    found(**along)


def test_each_collective_is_joined_to_its_own_kernel(program: Program, found: Found) -> None:
    for rank in range(program.ranks):
        pairs = list(program.joined(rank))
        for row, kernel in pairs:
            assert (row.exec_start_at_ns, row.exec_end_at_ns) == (
                kernel["begin_ns"] - program.zeros_ns[rank],
                kernel["end_ns"] - program.zeros_ns[rank],
            )
        profiled = {row.step for row in program.steps(rank)}
        launched_in = [row for row in program.result.collectives if row.rank == rank and row.step in profiled]
        assert {row.evidence for row in launched_in} == {Evidence.DEVICE} and len(pairs) >= ACTIVE
        found(joined=len(pairs))


def test_each_bucket_has_the_times_of_its_own_kernels(program: Program, found: Found) -> None:
    for rank in range(program.ranks):
        profiled = {row.step for row in program.steps(rank)}
        buckets = [row for row in program.result.buckets if row.rank == rank and row.step in profiled]
        assert bool(buckets) == bool(program.strategy.buckets)
        kernels = {row.seq: (kernel["begin_ns"], kernel["end_ns"]) for row, kernel in program.joined(rank)}
        for row in buckets:
            spans = [kernels[seq] for seq in row.seqs]
            assert spans and row.evidence is Evidence.DEVICE and row.comm_ns == union_ns(spans)
            begin = min(begin for begin, _ in spans)
            assert row.exec_start_at_ns == begin - program.zeros_ns[rank]
        per_step = Counter(row.step for row in buckets)
        assert all(count >= program.strategy.buckets for count in per_step.values())
        used = [seq for row in buckets for seq in row.seqs]
        assert len(used) == len(set(used))
        found(buckets=len(buckets), kernels=len(used))


def test_each_rank_waits_for_its_peers_as_long_as_ran(program: Program, found: Found) -> None:
    """From the begin of its own kernel to that of the last rank's, at most to its own end."""
    spans = {
        (rank, row.seq): tuple(kernel[edge] - program.zeros_ns[rank] for edge in ("begin_ns", "end_ns"))
        for rank in range(program.ranks)
        for row, kernel in program.joined(rank)
    }
    matches: defaultdict[int, list[Any]] = defaultdict(list)
    for row in program.result.arrivals:
        if row.wait_ns is not None and (row.rank, row.seq) in spans:
            matches[row.match].append(row)
    met = [rows for rows in matches.values() if len(rows) == program.ranks]
    for rows in met:
        last = max(spans[row.rank, row.seq][0] for row in rows)
        for row in rows:
            begin, end = spans[row.rank, row.seq]
            assert (row.wait_ns, row.transfer_ns) == (min(last, end) - begin, max(end - last, 0))
    assert len(met) >= ACTIVE * program.strategy.buckets
    found(met=len(met))


def test_each_unit_has_the_times_of_its_own_kernels(program: Program, found: Found) -> None:
    """And each collective is in exactly one row of units, whose dimensions add up to what was exposed."""
    for rank in range(program.ranks):
        steps = {row.step: row for row in program.steps(rank)}
        kernels = {row.seq: (kernel["begin_ns"], kernel["end_ns"]) for row, kernel in program.joined(rank)}
        rows = [row for row in program.result.units if row.rank == rank]
        calls = Counter(row.seq for row in program.result.collectives if row.rank == rank and row.part == 0)
        assert Counter(seq for row in rows for seq in row.seqs) == calls
        for row in (row for row in rows if row.step in steps):
            spans = [kernels[seq] for seq in row.seqs]
            assert row.comm_ns == union_ns(spans)
            assert row.exec_start_at_ns == min(begin for begin, _ in spans) - program.zeros_ns[rank]
        for step, row in steps.items():
            mine = [one for one in program.result.dimensions if (one.rank, one.step) == (rank, step)]
            assert sum(one.exposed_charged_ns or 0 for one in mine) == row.exposed_comm_ns
        found(units=dict(Counter(f"{row.kind} {row.role}" for row in rows)))


def test_the_units_of_fsdp_are_its_layers(program: Program, found: Found) -> None:
    if program.name != "fsdp2":
        pytest.skip("it has no FSDP units")
    whole = 4 * (WIDTH * WIDTH + WIDTH)
    for rank in range(program.ranks):
        rows = [row for row in program.result.units if row.rank == rank and row.kind == "fsdp"]
        profiled = {row.step for row in program.steps(rank)}
        for step in profiled:
            told = Counter((row.name, row.role, row.phase) for row in rows if row.step == step)
            each = [("unshard", "forward"), ("unshard", "backward"), ("reduce-scatter", "backward")]
            assert told == Counter((str(layer), *what) for layer in range(LAYERS) for what in each)
        assert {row.whole_nbytes for row in rows} == {whole}
        assert {row.nbytes for row in rows if row.role == "unshard"} == {whole // 2}  # in bfloat16
        assert {row.nbytes for row in rows if row.role == "reduce-scatter"} == {whole}
        ahead = {row.name: row.prefetch_distance for row in rows if row.phase == "forward" and row.step in profiled}
        assert ahead == {str(layer): min(layer, 1) for layer in range(LAYERS)}
        found(ahead=ahead)


def test_the_units_of_fsdp_are_played_again_as_the_stream_went(program: Program, found: Found) -> None:
    if program.name != "fsdp2":
        pytest.skip("it has no FSDP units")
    result = program.result
    scripts = [script for rank in program.run.ranks if (script := script_of(view_of(rank))) is not None]
    assert len(scripts) == program.ranks
    for script in scripts:
        windows = {row.step: row.window_ns for row in result.steps if row.rank == script.rank}
        assert {one.step for one in script.steps} <= set(windows) and len(script.steps) >= ACTIVE - 1
        counts = Counter(op.role for op in Plan(script, ways_of(script, Setting())).ops(script.steps[0]))
        assert (counts[UnitRole.UNSHARD], counts[UnitRole.REDUCE_SCATTER]) == (2 * LAYERS, LAYERS)
        for one in script.steps:
            work = sum(one.before_ns) + sum(map(sum, (one.out_ns.values(), one.reduce_in_ns.values())))
            assert 0 < work <= one.wall_ns
        found(walls={one.step: one.wall_ns / windows[one.step] for one in script.steps})


def test_a_pipelines_stages_compute_when_their_kernels_run(program: Program, found: Found) -> None:
    if program.name != "pipeline":
        pytest.skip("it is no pipeline")
    for rank in range(program.ranks):
        rows = [row for row in program.result.pipeline if row.rank == rank]
        assert Counter(row.turn for row in rows) == dict.fromkeys(range(STEPS), 2 * program.ranks)
        turns = [row for row in program.result.bubbles if row.rank == rank]
        assert [row.turn for row in turns] == list(range(STEPS))
        for row in turns:
            parts_ns = (row.compute_ns, row.bubble_ns, row.stage_wait_ns, row.transfer_ns, row.other_ns)
            assert sum(parts_ns) == row.window_ns
        events = program.run.ranks[rank].device_events
        error_ns = CLOCK_PAIR_NS + (0 if events is None else events.error_ns)
        spans = [(row.begin_at_ns - error_ns, row.end_at_ns + error_ns) for row in rows]
        products = [
            (one["begin_ns"] - program.zeros_ns[rank], one["end_ns"] - program.zeros_ns[rank])
            for one in program.work[rank]
            if "mm_kernel" in one["name"]
        ]
        ours = [span for span in products if span[0] >= spans[0][0]]  # before, torch tries the stage out
        assert len(ours) > STEPS * program.ranks or not HERE.has_ledger
        assert all(any(low <= begin and end <= high for low, high in spans) for begin, end in ours)
        found(products=len(ours), turns=len(turns))


def test_idle_time_is_what_the_device_had_and_what_held_the_host(program: Program, found: Found) -> None:
    """The whole of it, and what the host's calls and queued work explain of it."""
    host_idle_ns = 0
    for rank, told in enumerate(program.told):
        rows = program.steps(rank)
        ends = ends_of_steps(program.work[rank], [program.zeros_ns[rank] + row.end_at_ns for row in rows])
        by_step: defaultdict[int | None, Counter[str]] = defaultdict(Counter)
        for one in program.result.idle:
            if one.rank == rank:
                by_step[one.step][one.cause] += one.idle_ns
        launches = {one.step: one for one in program.result.launches if one.rank == rank}
        for row, span in zip(rows[1:], itertools.pairwise(ends), strict=True):
            idle_ns = parts(program.work[rank], *span)["idle_ns"]
            assert by_step[row.step].total() == launches[row.step].idle_ns == idle_ns
            if HERE.has_ledger:
                calls = [*owners_in(program.files[rank]), *told["calls"]]
                causes = idle_by_cause(program.work[rank], calls, told["main_thread"], *span)
                assert launches[row.step].host_idle_ns == idle_ns - causes["queued"]
                for name in ("queued", "launch", "runtime", "data"):
                    assert by_step[row.step][name] == causes[name]
                told_ns, true_ns = (sum(one[name] for name in WAITS) for one in (by_step[row.step], causes))
                assert told_ns == true_ns  # operators tell which of the two it is
                host_idle_ns += idle_ns - causes["queued"]
        found(idle={row.step: dict(by_step[row.step]) for row in rows[1:]})
    if program.strategy.host_bound and HERE.has_ledger and not host_idle_ns:
        pytest.skip("inconclusive: the device never waited for the host, as on a busy machine")


def test_copies_are_those_that_ran(program: Program, found: Found) -> None:
    for rank in range(program.ranks):
        told = Counter[str](), Counter[str]()
        for row in program.result.copies:
            if row.rank == rank and row.step is None:
                told[0][row.name] += row.events
                told[1][row.name] += row.copy_ns
        expected = Counter[str](), Counter[str]()
        for entry in entries_of(program.files[rank]):
            if entry["kind"] == "copy":
                expected[0][entry["name"]] += 1
                expected[1][entry["name"]] += entry["end_ns"] - entry["begin_ns"]
        assert told == expected
        if "loaded" in program.name:
            batches = told[0]["Memcpy HtoD (Pinned -> Device)"]
            assert batches == ACTIVE or (batches == ACTIVE + 1 and HERE.is_gpu)  # queued before the window
        found(copies=dict(told[0]))


def test_no_finding_is_untrue_of_the_program(program: Program, found: Found) -> None:
    """Each trains one model, with one update a step, and all but `unused` use all of it; no CPU thread communicates."""
    said = {finding.code: finding.message for finding in program.result.findings}
    found(findings=sorted(said))
    untrue = {"synchronised-never", "synchronised-early", "synchronised-often", "queued", "desync", "exec-missing"}
    if "unused" not in program.name:
        untrue.add("find-unused-parameters")
    assert not untrue & said.keys(), said
