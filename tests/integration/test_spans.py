"""Two ranks of stock DDP, traced into the OpenTelemetry SDK while they run, against the tables of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.telemetry.rows import RankRows, of_result
from ddptrace.telemetry.spans.trees import Node, trees
from tests.launch import environment, torchrun
from tests.self_launched import self_launched

RANKS = 2
Span = dict[str, Any]


@dataclass(frozen=True)
class Traced:
    result: Result
    early: dict[int, int]  # spans that were there before the context ended, by rank
    spans: dict[int, list[Span]]  # by rank

    def of(self, kind: str) -> list[Span]:
        return [span for spans in self.spans.values() for span in spans if kind_of(span) == kind]


def kind_of(span: Span) -> str:
    return str(at(span, "span.kind"))


def at(span: Span, name: str) -> Any:
    return span["attributes"].get(f"ddptrace.{name}")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return run(tmp_path_factory.mktemp("spanned"))


def run(folder: Path, *arguments: str) -> Traced:
    torchrun("spanned.py", folder / "run", folder, *arguments, ranks=RANKS)
    told = {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)}
    early, spans = ({rank: one[name] for rank, one in told.items()} for name in ("early", "spans"))
    return Traced(ddptrace.analyze(folder / "run"), early, spans)


def test_spans_are_made_while_training_runs(traced: Traced) -> None:
    assert all(early > 0 for early in traced.early.values())


def test_there_is_one_span_per_step_phase_bucket_and_collective_of_each_rank(traced: Traced) -> None:
    result = traced.result
    assert Counter((at(s, "rank"), at(s, "step")) for s in traced.of("step")) == Counter(
        (r.rank, r.step) for r in result.steps
    )
    assert Counter((at(s, "rank"), at(s, "step"), at(s, "phase")) for s in traced.of("phase")) == Counter(
        (r.rank, r.step, r.phase) for r in result.phases
    )
    keys = ("rank", "step", "bucket.backward", "bucket.reducer", "bucket.layout", "bucket.index", "bucket.nbytes")
    assert Counter(tuple(at(s, key) for key in keys) for s in traced.of("bucket")) == Counter(
        (r.rank, r.step, r.backward, r.reducer, r.layout, r.index, r.nbytes) for r in result.buckets
    )
    calls = {(r.rank, r.seq, r.op, r.group, r.ordinal) for r in result.collectives}
    names = ("rank", "collective.seq", "collective.op", "collective.group", "collective.ordinal")
    assert Counter(tuple(at(s, name) for name in names) for s in traced.of("collective")) == Counter(calls)
    assert len(result.buckets) > RANKS * 24  # the test tests something


def test_times_are_those_of_the_tables(traced: Traced) -> None:
    result = traced.result
    zero = result.zero_unix_ns
    steps = {(at(s, "rank"), at(s, "step")): (s["begin"] - zero, s["end"] - zero) for s in traced.of("step")}
    assert steps == {(r.rank, r.step): (r.begin_at_ns, r.end_at_ns) for r in result.steps}
    phases = {(at(s, "rank"), s["name"], s["begin"] - zero, s["end"] - zero) for s in traced.of("phase")}
    assert phases == {(r.rank, f"{r.phase} · rank {r.rank}", r.begin_at_ns, r.end_at_ns) for r in result.phases}
    keys = ("rank", "step", "bucket.backward", "bucket.index")
    buckets = {tuple(at(s, k) for k in keys): (s["begin"] - zero, s["end"] - zero) for s in traced.of("bucket")}
    assert buckets == {
        (r.rank, r.step, r.backward, r.index): (r.first_ready_at_ns, r.exec_end_at_ns) for r in result.buckets
    }


def test_every_attribute_is_that_of_the_tables(traced: Traced) -> None:
    expected = Counter(
        text for rows in of_result(traced.result) for tree in trees(alone(rows)) for root in tree.roots
        for text in written(root)
    )  # fmt: skip
    found = Counter(json.dumps(span["attributes"], sort_keys=True) for spans in traced.spans.values() for span in spans)
    assert found == expected


def test_afterwards_a_collective_tells_how_long_it_waited_for_the_other_rank(traced: Traced) -> None:
    last = {match.match: (match.last_rank, match.skew_ns) for match in traced.result.matches}
    told = {
        (rows.rank, seq): (one.wait_for_peers_ns, one.transfer_ns, (one.last_rank, one.skew_ns))
        for rows in of_result(traced.result) for seq, one in rows.meetings.items()
    }  # fmt: skip
    arrivals = traced.result.arrivals
    assert told == {(a.rank, a.seq): (a.wait_ns, a.transfer_ns, last[a.match]) for a in arrivals}
    assert len(told) > RANKS * 24


def alone(rows: RankRows) -> RankRows:
    """Without what only all ranks together tell: while it runs, each rank has its own records alone."""
    return replace(rows, meetings={})


def written(node: Node) -> list[str]:
    below = [text for child in node.children for text in written(child)]
    return [json.dumps(node.attributes, sort_keys=True), *below]


def test_a_step_holds_its_phases_a_phase_the_buckets_launched_in_it_a_bucket_its_collectives(traced: Traced) -> None:
    spans = {span["id"]: span for own in traced.spans.values() for span in own}
    assert len(spans) == sum(map(len, traced.spans.values()))
    for span in spans.values():
        parent = spans.get(span["parent"])
        if parent is not None:
            assert (at(parent, "rank"), at(parent, "step")) == (at(span, "rank"), at(span, "step"))
            assert parent["trace"] == span["trace"]
    assert {kind_of(spans[s["parent"]]) for s in traced.of("phase")} == {"step"}
    assert {at(spans[s["parent"]], "phase") for s in traced.of("bucket")} == {"backward"}
    carried = [s for s in traced.of("collective") if at(s, "bucket.index") is not None]
    assert len(carried) == len(traced.of("bucket"))
    assert all(at(spans[s["parent"]], "bucket.index") == at(s, "bucket.index") for s in carried)
    metrics = [s for s in traced.of("collective") if at(s, "collective.nbytes") == 4 and at(s, "step") is not None]
    assert len(metrics) == len(traced.of("step")) - RANKS  # the last one comes after the last step
    assert {at(spans[s["parent"]], "phase") for s in metrics} == {"other"}  # between the optimizer and the next forward


def test_steps_are_roots_where_no_span_is_active(traced: Traced) -> None:
    assert {span["parent"] for span in traced.of("step")} == {None}


def test_steps_hang_under_the_users_own_span_on_each_rank(tmp_path: Path) -> None:
    inside = run(tmp_path, "inside")
    for rank, spans in inside.spans.items():
        (users,) = [span for span in spans if span["name"] == "the user's own"]
        assert {span["trace"] for span in spans} == {users["trace"]}
        steps = [span for span in spans if span["name"].startswith("step ")]
        assert {span["parent"] for span in steps} == {users["id"]}
        assert len(steps) == sum(row.rank == rank for row in inside.result.steps) > 0
        meta = json.loads((tmp_path / "run" / f"rank-0000{rank}" / "meta.json").read_text())
        *ids, flags = meta["traceparent"].split("-")
        assert ids == ["00", f"{users['trace']:032x}", f"{users['id']:016x}"]
        assert int(flags, 16) & 1  # sampled


SPANNED_PROGRAM = """
from opentelemetry.sdk.trace import TracerProvider
with TracerProvider().get_tracer("user").start_as_current_span("the user's own") as span:
    import torch
print(format(span.get_span_context().span_id, "016x"))
"""


def test_a_program_under_the_launcher_leaves_the_span_too_in_which_it_imports_torch(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SPANNED_PROGRAM)
    launcher = [sys.executable, "-m", "ddptrace.run", "--out", tmp_path / "run", tmp_path / "program.py"]
    said = subprocess.run(launcher, env=environment(), check=True, capture_output=True, text=True).stdout
    meta = json.loads((tmp_path / "run" / "rank-00000" / "meta.json").read_text())
    assert meta["traceparent"].split("-")[2] == said.strip()


def test_each_collective_is_linked_to_the_other_ranks_span_of_it(traced: Traced) -> None:
    """What the other rank has sent is found by the link, though the two have not spoken of it."""
    spans = {(span["trace"], span["id"]): span for own in traced.spans.values() for span in own}
    collectives = [
        (span, spans[trace, there], of) for span in traced.of("collective") for trace, there, of in span["links"]
    ]
    assert len(collectives) == len(traced.of("collective"))
    for one, other, of in collectives:
        assert of == {"ddptrace.rank": at(other, "rank")} != {"ddptrace.rank": at(one, "rank")}
        same = ("step", "collective.op", "collective.group", "collective.ordinal", "collective.nbytes")
        assert [at(one, name) for name in same] == [at(other, name) for name in same]


def test_all_ranks_of_a_step_share_one_trace(traced: Traced) -> None:
    by_step: dict[int | None, set[int]] = {}
    for own in traced.spans.values():
        for span in own:
            by_step.setdefault(at(span, "step"), set()).add(span["trace"])
    assert all(len(ids) == 1 for ids in by_step.values())
    assert len(set.union(*by_step.values())) == len(by_step)
    ranks = {(at(span, "step"), at(span, "rank")) for span in traced.of("step")}
    assert ranks == {(step, rank) for step in by_step if step is not None for rank in range(RANKS)}


def test_what_ran_after_the_last_step_has_a_span_too(traced: Traced) -> None:
    strays = [s for s in traced.of("collective") if at(s, "step") is None]
    assert Counter((at(s, "rank"), at(s, "collective.op")) for s in strays) == Counter(
        {(0, "all_reduce"): 2, (1, "all_reduce"): 2}
    )


def test_the_span_of_a_collective_whose_peer_died_tells_so(tmp_path: Path) -> None:
    self_launched("peer_death.py", tmp_path, "sync")
    survivor, *_ = of_result(ddptrace.analyze(tmp_path / "run"))
    nodes = [root for tree in trees(survivor) for root in tree.roots]
    for node in nodes:  # grows as it goes
        nodes.extend(node.children)
    failed = [node for node in nodes if node.error]
    assert [node.attributes["error.type"] for node in failed] == ["connection"]
    assert "onnection" in str(failed[0].error)
    assert failed[0].attributes["ddptrace.collective.ordinal"] == max(row.ordinal for row in survivor.collectives)
