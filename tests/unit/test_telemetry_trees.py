"""From tables to trees of spans."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterator
from typing import Any

from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.table import Table
from ddptrace.telemetry.common_attributes import KIND, PHASE, RANK, RUN_ID, STEP
from ddptrace.telemetry.rows import Meeting, of_result
from ddptrace.telemetry.spans import attributes, trees
from ddptrace.telemetry.spans.trees import Node, Tree
from tests.made import empty_result, make_result

TABLES: dict[str, tuple[attributes.Attribute[Any], ...]] = {
    "step": attributes.STEP_ATTRIBUTES,
    "phase": attributes.PHASE_ATTRIBUTES,
    "bucket": attributes.BUCKET_ATTRIBUTES,
    "collective": (
        *attributes.COLLECTIVE_ATTRIBUTES, *attributes.MEETING_ATTRIBUTES,
    ),
}  # fmt: skip
COMMON = {KIND: str, RUN_ID: str, RANK: int, STEP: int, PHASE: str}


def trees_of(result: Result, steps: Container[int] | None = None, *, strays: bool = True) -> Iterator[Tree]:
    """Of all ranks, in turn."""
    for rows in of_result(result):
        yield from trees.trees(rows, steps, strays=strays)


def nodes(tree: Tree) -> list[Node]:
    found = list(tree.roots)
    for node in found:  # grows as it goes
        found.extend(node.children)
    return found


def with_collectives(result: Result, rows: list[CollectiveRow]) -> Result:
    return dataclasses.replace(result, collectives=Table(CollectiveRow, rows))


def test_every_row_has_one_span_under_the_right_parent() -> None:
    result = make_result(ranks=2, steps=3, buckets=4)
    made = list(trees_of(result))
    assert [(tree.rank, tree.step) for tree in made] == [(rank, step) for rank in range(2) for step in range(3)]
    for tree in made:
        (step,) = tree.roots
        phases = [f"{phase} · rank {tree.rank}" for phase in ("data", "forward", "backward", "optimizer", "other")]
        assert [phase.name for phase in step.children] == phases
        backward, optimizer = step.children[2], step.children[3]
        assert [one.name for one in backward.children] == [f"bucket {k} · rank {tree.rank}" for k in range(4)]
        sent = f"allreduce_ 4.20 MB · rank {tree.rank}"
        assert [[below.name for below in bucket.children] for bucket in backward.children] == [[sent]] * 4
        assert [below.name for below in optimizer.children] == [f"allreduce_ 4 B · rank {tree.rank}"]  # of no bucket
        assert all(node.attributes[KIND] == node.key[0] for node in nodes(tree))
    kinds = Counter(node.key[0] for tree in made for node in nodes(tree))
    assert kinds == {
        "step": len(result.steps), "phase": len(result.phases), "bucket": len(result.buckets),
        "collective": len(result.collectives),
    }  # fmt: skip


def test_keys_are_unique_in_a_step() -> None:
    for tree in trees_of(make_result()):
        keys = [node.key for node in nodes(tree)]
        assert len(set(keys)) == len(keys)


def test_a_bucket_lasts_from_its_first_gradient_to_the_end_of_its_communication() -> None:
    result = make_result(ranks=1, steps=1, buckets=3)
    (tree,) = trees_of(result)
    spans = [(n.begin_at_ns, n.end_at_ns) for n in nodes(tree) if n.key[0] == "bucket"]
    assert spans == [(row.first_ready_at_ns, row.exec_end_at_ns) for row in result.buckets]


def test_what_is_not_known_of_a_communication_is_taken_from_launch_and_completion() -> None:
    result = make_result(ranks=1, steps=1, buckets=1)
    bucket = dataclasses.replace(
        result.buckets[0], first_ready_at_ns=None, ready_at_ns=None, exec_start_at_ns=None, exec_end_at_ns=None,
        comm_ns=None, hidden_ns=None, exposed_ns=None, exposed_charged_ns=None, wait_ns=None, queue_ns=None,
        evidence=None,
    )  # fmt: skip
    silent = dataclasses.replace(bucket, index=1, done_at_ns=None, seqs=())
    (tree,) = trees_of(dataclasses.replace(result, buckets=Table(BucketRow, [bucket, silent])))
    first, second = [n for n in nodes(tree) if n.key[0] == "bucket"]
    assert (first.begin_at_ns, first.end_at_ns) == (bucket.launch_at_ns, bucket.done_at_ns)
    assert (second.begin_at_ns, second.end_at_ns) == (bucket.launch_at_ns, bucket.launch_at_ns)
    assert not [name for name in first.attributes if name.startswith("ddptrace.comm.")]
    loss = next(n for n in nodes(tree) if n.key[0] == "collective" and "ddptrace.bucket.index" not in n.attributes)
    row = result.collectives[1]
    assert (loss.begin_at_ns, loss.end_at_ns) == (row.launch_at_ns, row.done_at_ns)


def test_every_attribute_is_in_the_table_with_its_type_and_none_is_none() -> None:
    result = make_result()
    hooked = dataclasses.replace(result.buckets[0], hook="fp16_compress_hook", hook_ns=5)
    told = dataclasses.replace(
        result.collectives[0], origin="fsdp", site="train.py:42 in main",
        through="lib.py:7 in reduce", module="blocks.0", turn=3, peer=1,
        group_size=2, lane="stream 7", busbw_bytes_per_s=1e9, profiler_range="ddptrace#7",
        error="Timed out waiting 1000ms for recv", unit="blocks.0", unit_role="unshard", dimension="fsdp",
    )  # fmt: skip
    result = with_collectives(result, [told, *result.collectives[1:]])
    result = dataclasses.replace(result, buckets=Table(BucketRow, [hooked, *result.buckets[1:]]))
    rows = next(of_result(result))
    rows = dataclasses.replace(rows, meetings={told.seq: Meeting(1, 2, 1, 3)})
    seen: dict[str, set[str]] = {kind: set() for kind in TABLES}
    for tree in trees.trees(rows):
        for node in nodes(tree):
            kind = str(node.key[0])
            types = COMMON | {attribute.name: attribute.type for attribute in TABLES[kind]}
            assert {name: type(value) for name, value in node.attributes.items()} == {
                n: types[n] for n in node.attributes
            }
            seen[kind] |= node.attributes.keys()
    for kind, table in TABLES.items():
        assert {attribute.name for attribute in table} <= seen[kind], "an attribute that nothing ever has"


def test_no_name_is_also_a_namespace_of_another() -> None:
    names = {attribute.name for table in TABLES.values() for attribute in table} | set(COMMON)
    assert not [(a, b) for a in names for b in names if b.startswith(f"{a}.")]


def test_values_are_those_of_the_row() -> None:
    result = make_result(ranks=1, steps=1, buckets=2)
    row = result.buckets[1]
    assert row.comm_ns
    assert row.hidden_ns is not None
    assert row.first_ready_at_ns is not None
    assert row.ready_at_ns is not None
    (tree,) = trees_of(result)
    node = [n for n in nodes(tree) if n.key[0] == "bucket"][1]
    assert node.attributes == {
        "ddptrace.span.kind": "bucket",
        "ddptrace.run.id": result.run_id, "ddptrace.rank": 0, "ddptrace.step": 0, "ddptrace.phase": "backward",
        "ddptrace.bucket.reducer": row.reducer, "ddptrace.bucket.layout": row.layout, "ddptrace.bucket.index": 1,
        "ddptrace.bucket.backward": 0, "ddptrace.bucket.nbytes": row.nbytes, "ddptrace.bucket.parameters": 4,
        "ddptrace.bucket.first_parameter": row.parameters[0], "ddptrace.bucket.last_parameter": row.parameters[-1],
        "ddptrace.bucket.fill_ns": row.ready_at_ns - row.first_ready_at_ns,
        "ddptrace.bucket.launch_delay_ns": row.launch_at_ns - row.ready_at_ns, "ddptrace.comm.queue_ns": row.queue_ns,
        "ddptrace.comm.duration_ns": row.comm_ns, "ddptrace.comm.hidden_ns": row.hidden_ns,
        "ddptrace.comm.exposed_ns": row.exposed_ns, "ddptrace.comm.exposed_charged_ns": row.exposed_charged_ns,
        "ddptrace.comm.overlap_ratio": row.hidden_ns / row.comm_ns, "ddptrace.comm.wait_ns": row.wait_ns,
        "ddptrace.comm.evidence": "backend",
    }  # fmt: skip


def test_a_collective_told_in_parts_is_one_span_in_the_step_that_launched_it() -> None:
    result = make_result(ranks=1, steps=2, buckets=1)
    whole = result.collectives[0]
    border = result.steps[0].end_at_ns
    parts = [
        dataclasses.replace(whole, exec_end_at_ns=border, comm_ns=10, hidden_ns=4, exposed_ns=6, exposed_charged_ns=5),
        dataclasses.replace(whole, part=1, step=1, exec_start_at_ns=border, exec_end_at_ns=border + 3, wait_ns=None,
                            queue_ns=None, comm_ns=3, hidden_ns=1, exposed_ns=2, exposed_charged_ns=2),
    ]  # fmt: skip
    made = list(trees_of(with_collectives(result, [*parts, *result.collectives[1:]])))
    found = [
        (tree.step, node)
        for tree in made
        for node in nodes(tree)
        if node.attributes.get("ddptrace.collective.seq") == whole.seq
    ]
    ((step, node),) = found
    assert step == 0
    assert (node.begin_at_ns, node.end_at_ns) == (whole.exec_start_at_ns, border + 3)
    sums = {
        name: node.attributes[f"ddptrace.comm.{name}_ns"]
        for name in ("duration", "hidden", "exposed", "exposed_charged")
    }
    assert sums == {"duration": 13, "hidden": 5, "exposed": 8, "exposed_charged": 7}
    assert node.attributes["ddptrace.comm.wait_ns"] == whole.wait_ns


def test_a_failed_collective_has_its_error_and_the_class_of_it() -> None:
    rows = next(of_result(make_result(ranks=1, steps=1, buckets=3)))
    words = ["Timed out waiting 5ms", "Connection closed by peer [::1]", "no such device"]
    failed = [dataclasses.replace(row, error=said) for row, said in zip(rows.collectives, words, strict=False)]
    (tree,) = trees.trees(dataclasses.replace(rows, collectives=(*failed, *rows.collectives[len(failed) :])))
    found = [(n.error, n.attributes.get("error.type")) for n in nodes(tree) if n.key[0] == "collective"]
    assert sorted(found, key=str) == sorted(
        [*zip(words, ["timeout", "connection", "_OTHER"], strict=True), (None, None)], key=str
    )
    assert {n.error for n in nodes(tree) if n.key[0] != "collective"} == {None}


def test_what_is_outside_of_all_steps_comes_last_and_only_when_asked_for() -> None:
    result = make_result(ranks=1, steps=2, buckets=1)
    after = dataclasses.replace(result.collectives[-1], step=None, seq=99, launch_at_ns=result.steps[-1].end_at_ns + 5)
    stray = with_collectives(result, [*result.collectives, after])
    *_, last = trees_of(stray)
    assert (last.step, [node.attributes["ddptrace.collective.seq"] for node in last.roots]) == (None, [99])
    assert "ddptrace.step" not in last.roots[0].attributes
    assert [tree.step for tree in trees_of(stray, range(1, 2), strays=False)] == [1]


def test_a_run_in_which_nothing_was_seen_has_no_spans() -> None:
    assert list(trees_of(empty_result())) == []
