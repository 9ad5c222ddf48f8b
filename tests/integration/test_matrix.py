"""Every operation, every way to call it, in each kind of group, through each surface: counted by equality.

The cells are in tests/programs/matrix_cells.py, matrix_special.py and matrix_models.py; what counts as bytes in and out
stands in matrix_witness.py. Three witnesses that know nothing of the records: calls written by hand, what a dispatch
mode saw of the same cells, and how many operators torch.profiler counted, both without a trace."""

from __future__ import annotations

import bisect
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from ddptrace.load.run import read_run
from ddptrace.load.tables import Call, RankRun, Run
from tests.launch import torchrun
from tests.programs.matrix_witness import OPERATORS

RANKS = range(4)
SEEN_WHOLE = ("tap", "window")
SURFACES = (*SEEN_WHOLE, "fallback")

Told = tuple[str, int, int, str, str, int]
"""Operation, bytes in, bytes out, dtype, name of the group, global rank of the peer or root (`NOBODY` without one)."""
NOBODY = -1

IN_BACKWARD = ("gradients", "unused-parameters", "hook")
"""What DDP's C++ issues or has issued while the autograd engine runs, which no line of the program calls."""


@dataclass(frozen=True)
class Rank:
    """What one rank's witnesses say, and its part of a run."""

    folder: Path
    rank: int

    @cached_property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"said-{self.rank}.json").read_text())
        return found

    @property
    def cells(self) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = self.said["cells"]
        return cells

    def must(self, number: int) -> list[Told]:
        """By hand, or else as the dispatch mode saw it."""
        by_hand = self.cells[number]["calls"]
        if by_hand is None:
            return self.by_mode(number)
        return sorted(
            (c["op"], c["nbytes_in"], c["nbytes_out"], c["dtype"], c["group"], someone(c["peer"])) for c in by_hand
        )

    def by_mode(self, number: int) -> list[Told]:
        return sorted((*call, someone(peer)) for *call, peer in self.said["counted"][number])

    def profiled(self, prefix: str) -> list[Counter[str]]:
        """Of each cell, events of torch.profiler by the rest of their names."""
        events = json.loads((self.folder / f"witness-{self.rank}.json").read_text())["traceEvents"]
        spans = sorted(
            (event["ts"], event["ts"] + event["dur"], int(event["name"].removeprefix("cell ")))
            for event in events
            if event.get("ph") == "X" and event["name"].startswith("cell ") and event["cat"] == "user_annotation"
        )
        assert [number for *_, number in spans] == list(range(len(self.cells)))
        counts: list[Counter[str]] = [Counter() for _ in spans]
        for event in events:
            if event.get("ph") == "X" and event["name"].startswith(prefix):
                at = bisect.bisect_right(spans, (event["ts"], float("inf"))) - 1
                assert spans[at][0] <= event["ts"] < spans[at][1], f"{event['name']} lies in no cell"
                counts[at][event["name"].removeprefix(prefix)] += 1
        return counts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix")
    torchrun("matrix.py", path, ranks=len(RANKS), timeout_s=240)
    return path


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[Rank]:
    return [Rank(folder, rank) for rank in RANKS]


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Run]:
    return {surface: read_run(folder / surface) for surface in SURFACES}


def by_cell(rank: RankRun) -> list[list[Call]]:
    """Each cell is a step."""
    ends = [step.end_at_ns for step in rank.steps]
    calls: dict[int, list[Call]] = defaultdict(list)
    for call in rank.calls:
        calls[bisect.bisect_right(ends, call.launch_at_ns)].append(call)
    return [calls[number] for number in range(len(ends))]


def told(calls: list[Call]) -> list[Told]:
    return sorted(
        (call.op, call.nbytes_in, call.nbytes_out, call.dtype, call.group, someone(call.peer)) for call in calls
    )


def someone(peer: int | None) -> int:
    return NOBODY if peer is None else peer


def differences(rank: Rank, run: Run, skip: tuple[bool | None, ...] = ()) -> list[str]:
    """One line for each cell of which the record says something else than it must."""
    recorded = by_cell(run.ranks[rank.rank])
    assert len(recorded) == len(rank.cells)
    return [
        f"{cell['name']}, rank {rank.rank}: recorded {told(calls)}, not {rank.must(number)}"
        for number, (cell, calls) in enumerate(zip(rank.cells, recorded, strict=True))
        if cell["python"] not in skip and told(calls) != rank.must(number)
    ]


def complaint(lines: list[str]) -> str:
    return "\n".join([f"{len(lines)} cells differ:", *lines[:20]])


@pytest.mark.parametrize("surface", SEEN_WHOLE)
def test_every_cell_leaves_exactly_the_calls_and_bytes_that_it_must(
    ranks: list[Rank], runs: dict[str, Run], surface: str
) -> None:
    found = [line for rank in ranks for line in differences(rank, runs[surface])]
    assert not found, complaint(found)


def test_the_calls_written_by_hand_are_those_that_a_dispatch_mode_sees(ranks: list[Rank]) -> None:
    """A mode sees a functional collective, but not the operators that it issues; there the profiler counts."""
    compared = 0
    for rank in ranks:
        for number, cell in enumerate(rank.cells):
            if cell["calls"] is not None and cell["python"] and not cell["alone"]:
                assert rank.must(number) == rank.by_mode(number), cell["name"]
                compared += 1
    assert compared > 4 * 150


@pytest.mark.parametrize("surface", SEEN_WHOLE)
def test_every_cell_has_as_many_calls_as_the_profiler_counted_without_a_trace(
    ranks: list[Rank], runs: dict[str, Run], surface: str
) -> None:
    found = []
    for rank in ranks:
        recorded = by_cell(runs[surface].ranks[rank.rank])
        for cell, calls, events in zip(rank.cells, recorded, rank.profiled("c10d::"), strict=True):
            seen = Counter({OPERATORS[name][0]: count for name, count in events.items()})
            if Counter(call.op for call in calls) != seen and not cell["refused"]:
                found.append(f"{cell['name']}, rank {rank.rank}: recorded {len(calls)} of {seen}")
    assert not found, complaint(found)


def test_sync_calls_are_told_from_async_ones_on_every_surface(ranks: list[Rank], runs: dict[str, Run]) -> None:
    found, compared = [], Counter[bool]()
    for surface in SURFACES:
        for rank in ranks:
            recorded = by_cell(runs[surface].ranks[rank.rank])
            for cell, calls in zip(rank.cells, recorded, strict=True):
                if cell["calls"] is None or (surface == "fallback" and not cell["python"]):
                    continue
                said = sorted((one["op"], one["sync"]) for one in cell["calls"])
                if sorted((call.op, call.is_sync) for call in calls) != said:
                    found.append(f"{cell['name']}, {surface}, rank {rank.rank}: not {said}")
                compared.update(sync for _, sync in said)
    assert not found, complaint(found)
    assert min(compared[True], compared[False]) > 500


def test_every_call_has_the_thread_that_issued_it_and_a_number_of_its_own(
    ranks: list[Rank], runs: dict[str, Run]
) -> None:
    elsewhere = 0
    for surface in SURFACES:
        for rank in ranks:
            run = runs[surface].ranks[rank.rank]
            outcomes = rank.said["outcomes"][surface]
            for cell, calls, (_, _, thread) in zip(rank.cells, by_cell(run), outcomes, strict=True):
                assert {call.thread for call in calls} <= {thread}, f"{cell['name']}, {surface}"
                elsewhere += len(calls) if cell["in_thread"] else 0
            seqs = [call.seq for call in run.calls]
            assert seqs == sorted(set(seqs))
    assert elsewhere == len(RANKS) * (2 * 3 + 2)  # the fallback does not see the functional one


@pytest.mark.parametrize("surface", SEEN_WHOLE)
def test_the_wait_for_every_functional_collective_is_its_own_and_follows_its_launch(
    ranks: list[Rank], runs: dict[str, Run], surface: str
) -> None:
    waited = 0
    for rank in ranks:
        for cell, calls in zip(rank.cells, by_cell(runs[surface].ranks[rank.rank]), strict=True):
            if cell["python"] is False and cell["calls"]:
                (call,) = calls
                tensors = 2 if "coalesced" in cell["name"] else 1
                assert len(call.waits) == tensors, cell["name"]
                assert all(call.issued_at_ns <= begin <= end for begin, end in call.waits)
                waited += 1
    assert waited == len(RANKS) * (2 * 9 + 1 + 4) + 2 * 2  # a pair has compiled cells


def test_every_group_is_told_with_its_ranks(ranks: list[Rank], runs: dict[str, Run]) -> None:
    pairs, three = {(0, 1), (2, 3)}, {(0, 1, 2), (0, 2)}
    for surface in SURFACES:
        for rank in ranks:
            run = runs[surface].ranks[rank.rank]
            groups = {group.name: group.ranks for group in run.groups}
            assert len(groups) == len(run.groups)
            assert {call.group for call in run.calls} == set(groups)
            mine = {members for members in pairs | three if rank.rank in members}
            assert set(groups.values()) == {(0, 1, 2, 3), *mine}


def test_every_call_that_the_program_issues_has_a_line_of_it(ranks: list[Rank], runs: dict[str, Run]) -> None:
    for surface in SURFACES:
        for rank in ranks:
            calls = by_cell(runs[surface].ranks[rank.rank])
            for cell, made in zip(rank.cells, calls, strict=True):
                for call in made:
                    has_line = call.origin in IN_BACKWARD or str(call.site).startswith("matrix")
                    assert has_line, f"{cell['name']}, {surface}: {call.op} from {call.origin}, {call.site}"


def test_results_and_refusals_are_the_same_with_and_without_a_trace(ranks: list[Rank]) -> None:
    for rank in ranks:
        outcomes = rank.said["outcomes"]
        for number, cell in enumerate(rank.cells):
            found = {phase: tuple(map(str, outcomes[phase][number][:2])) for phase in outcomes}
            assert len(set(found.values())) == 1, f"{cell['name']}: {found}"
            error = outcomes["profiled"][number][1]
            assert (error is not None) == cell["refused"], f"{cell['name']}: {error}"


def test_without_the_tap_all_that_goes_through_process_groups_is_seen_and_nothing_else(
    ranks: list[Rank], runs: dict[str, Run]
) -> None:
    run, found = runs["fallback"], []
    assert run.manifest["watching"]["collectives"] == "ProcessGroup class"
    for rank in ranks:
        found += differences(rank, run, skip=(False, None))
        for cell, calls in zip(rank.cells, by_cell(run.ranks[rank.rank]), strict=True):
            if cell["python"] is False and calls:
                found.append(f"{cell['name']}: recorded {told(calls)}")
    assert not found, complaint(found)


def test_without_the_tap_of_stock_ddp_only_what_a_python_hook_issues_is_seen(
    ranks: list[Rank], runs: dict[str, Run]
) -> None:
    gradients = 4 * (8 * 16 + 16 + 2 * 16 + 16 * 4 + 4)  # two linear layers and a norm, in two backwards
    for rank in ranks:
        recorded = by_cell(runs["fallback"].ranks[rank.rank])
        (hooked,) = (number for number, cell in enumerate(rank.cells) if cell["python"] is None)
        seen = [(call.op, call.nbytes_in, call.origin) for call in recorded[hooked]]
        assert seen == [("all_reduce", gradients, "hook")] * 2


def test_what_is_not_seen_is_named_in_the_manifest(ranks: list[Rank], runs: dict[str, Run]) -> None:
    backend, python = "all_reduce on the backend object", "all_reduce of a group written in Python"
    for rank in ranks:
        names = [cell["name"] for cell in rank.cells]
        assert rank.profiled("gloo:")[names.index(backend)] == {"all_reduce": 1}  # it did run
        for surface in SURFACES:
            calls = by_cell(runs[surface].ranks[rank.rank])
            assert calls[names.index(backend)] == calls[names.index(python)] == []
    for surface in SURFACES:
        spots = " ".join(runs[surface].manifest["blind_spots"])
        assert "on a backend object, beneath its process group" in spots
        assert "a process group written in Python" in spots
        assert "monitored_barrier as one call without bytes" in spots
        assert ("collectives that C++ issues" in spots) == (surface == "fallback")


def test_the_matrix_has_every_operator_that_this_torch_has(runs: dict[str, Run]) -> None:
    names = [schema.name.partition("::") for schema in torch._C._jit_get_all_schemas()]
    has = {name for namespace, _, name in names if namespace == "c10d"} - {"check_for_nan"}  # of no group
    assert has == set(OPERATORS)
    seen = {call.op for rank in runs["tap"].ranks for call in rank.calls}
    assert seen == {recorded for recorded, *_ in OPERATORS.values()}
