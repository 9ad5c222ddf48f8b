"""Where each collective comes from, on two real ranks: origin, line and module."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

import ddptrace
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.load.run import read_run
from tests.integration.test_everything_is_counted import WITNESS, kineto
from tests.launch import PROGRAMS, torchrun

STEPS = 3
PARAMETERS = 6
NUMEL = 8 * 8 + 8 + 2 * 8 + 8 * 8 + 8  # two linear layers and a norm
ORDER = ["stock, rebuilt", "stock, unused", "stock, hooked", "ours, rebuilt", "ours, unused"]


def line(comment: str, program: str = "origins.py") -> int:
    """Of the program, ending in this comment."""
    lines = (PROGRAMS / program).read_text().splitlines()
    [found] = [number for number, text in enumerate(lines, start=1) if text.endswith(f"  # {comment}")]
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("origins") / "run"
    torchrun("origins.py", path)
    return path


@pytest.fixture(scope="module")
def rows(run: Path) -> list[CollectiveRow]:
    """Of rank 1, each call once."""
    return [row for row in ddptrace.analyze(run).collectives if row.rank == 1 and not row.part]


@pytest.fixture(scope="module")
def models(rows: list[CollectiveRow]) -> dict[str, list[CollectiveRow]]:
    """By model, in the order in which they were trained: each begins with its construction."""
    trained = [row for row in rows if row not in by_hand(rows)]
    made = [row.origin == "construction" for row in trained]
    firsts = [at for at in range(len(made)) if made[at] and (at == 0 or not made[at - 1])]
    spans = itertools.pairwise([*firsts, len(trained)])
    return {name: trained[begin:end] for name, (begin, end) in zip(ORDER, spans, strict=True)}


def by_hand(rows: list[CollectiveRow]) -> list[CollectiveRow]:
    """What the program wrote outside of its models."""
    return [row for row in rows if row.site is not None and row.site.endswith(("in by_hand", "in <lambda>"))]


def origins(rows: list[CollectiveRow]) -> Counter[str | None]:
    return Counter(row.origin for row in rows)


def test_all_that_the_profiler_saw_is_there_and_has_an_origin(run: Path, rows: list[CollectiveRow]) -> None:
    events = [event["name"] for event in kineto(run, 1) if event["name"].startswith("c10d::")]
    assert Counter(row.op for row in rows) == Counter(WITNESS[name] for name in events)
    assert all(row.origin for row in rows)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 4 to compare and broadcast at construction, 2 dtypes of buffers each forward, one bucket each backward; ours
        # compare their steps in the first one, and in each once another of ours shares the group
        ("stock, rebuilt", {"construction": 4, "buffers": 6, "rebuild": 2, "gradients": 3, "program": 3}),
        ("stock, unused", {"construction": 4, "buffers": 6, "gradients": 3, "unused-parameters": 3, "program": 3}),
        ("stock, hooked", {"construction": 4, "buffers": 6, "rebuild": 2, "hook": 3, "program": 3}),
        (
            "ours, rebuilt",
            {"construction": 2, "buffers": 6, "rebuild": 1, "gradients": 3, "agreement": 1, "program": 3},
        ),
        (
            "ours, unused",
            {"construction": 2, "buffers": 6, "gradients": 3, "unused-parameters": 3, "agreement": 3, "program": 3},
        ),
    ],
)
def test_every_collective_of_a_model_has_its_origin(
    models: dict[str, list[CollectiveRow]], model: str, expected: dict[str, int]
) -> None:
    assert origins(models[model]) == expected


def test_the_bytes_of_an_origin_are_those_of_what_it_sends(models: dict[str, list[CollectiveRow]]) -> None:
    def sizes(model: str, origin: str) -> list[int | None]:
        return [row.nbytes for row in models[model] if row.origin == origin]

    for name in ORDER:
        assert sorted(sizes(name, "buffers")) == [8, 8, 8, 64, 64, 64]  # type: ignore[type-var]
        assert sizes(name, "program") == [4, 4, 4]
        sent = "hook" if name == "stock, hooked" else "gradients"
        assert sizes(name, sent) == [4 * NUMEL] * STEPS
    for name in ("stock, unused", "ours, unused"):
        assert sizes(name, "unused-parameters") == [4 * PARAMETERS] * STEPS


@pytest.mark.parametrize("model", ORDER)
def test_lines_and_modules_are_those_of_the_program(models: dict[str, list[CollectiveRow]], model: str) -> None:
    step, made = f"origins.py:{line('a step')} in train", f"origins.py:{line(model)} in main"
    told = {
        "construction": (made, None),
        "buffers": (step, "Net"),
        "rebuild": (step, "Net"),
        "program": (f"origins.py:{line('in a forward')} in Gate.forward", "encoder.1"),
        "hook": (f"origins.py:{line('in a hook')} in halved", None),
        "gradients": (None, None),
        "unused-parameters": (None, None) if model == "stock, unused" else (step, None),
        "agreement": (step, None),
    }
    for row in models[model]:
        assert row.origin is not None
        assert (row.site, row.module) == told[row.origin], row


def test_what_a_user_writes_has_the_users_line_however_torch_carries_it_out(rows: list[CollectiveRow]) -> None:
    found = by_hand(rows)
    assert [(row.op, row.site.partition(" ")[0]) for row in found if row.site] == [
        (op, f"origins.py:{line(comment)}")
        for op, comment in (
            ("all_reduce", "all_reduce"),
            ("broadcast", "broadcast_object_list"),  # the size, then the object
            ("broadcast", "broadcast_object_list"),
            ("all_gather", "all_gather_object"),
            ("all_gather", "all_gather_object"),
            ("all_reduce", "functional"),
            ("send", "batch_isend_irecv"),
            ("recv", "batch_isend_irecv"),
            ("barrier", "barrier"),
        )
    ]
    assert {(row.origin, row.module) for row in found} == {("program", None)}


def test_ranks_tell_the_same_of_every_call(run: Path) -> None:
    first, second = (
        [(call.op, call.origin, call.site, call.module) for call in rank.calls] for rank in read_run(run).ranks
    )
    assert [one for one in first if one[0] not in ("send", "recv")] == [
        one for one in second if one[0] not in ("send", "recv")
    ]


@pytest.fixture(scope="module")
def fsdp(tmp_path_factory: pytest.TempPathFactory) -> list[CollectiveRow]:
    return sharded(tmp_path_factory.mktemp("sharded"), "fsdp")


@pytest.fixture(scope="module")
def tensor(tmp_path_factory: pytest.TempPathFactory) -> list[CollectiveRow]:
    return sharded(tmp_path_factory.mktemp("sharded"), "tensor")


def sharded(folder: Path, kind: str) -> list[CollectiveRow]:
    torchrun("origins_sharded.py", folder / "run", kind)
    return [row for row in ddptrace.analyze(folder / "run").collectives if row.rank == 0 and not row.part]


def test_fsdp_names_the_module_of_every_gather_and_scatter_in_forward_and_backward(fsdp: list[CollectiveRow]) -> None:
    gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
    block = 4 * (16 * 32 + 32 + 32 * 16 + 16)
    a_step = [
        (gather, "Stack", 4 * (16 * 16 + 16)),
        (gather, "blocks.0", block),
        (gather, "blocks.1", block),
        (gather, "blocks.1", block),  # backward: parameters are needed again
        (gather, "blocks.0", block),
        (scatter, "blocks.1", block),
        (scatter, "blocks.0", block),
        (scatter, "Stack", 4 * (16 * 16 + 16)),
    ]
    assert [(row.op, row.module, row.nbytes) for row in fsdp] == a_step * STEPS
    assert {row.origin for row in fsdp} == {"fsdp"}
    program = "origins_sharded.py"
    in_forward, in_main = (
        f"{program}:{line('a block', program)} in Stack.forward",
        f"{program}:{line('a step', program)} in main",
    )
    assert [row.site for row in fsdp] == [in_main, in_forward, in_forward, *[in_main] * 5] * STEPS


def test_tensor_parallel_layers_are_named_in_forward_and_in_backward(tensor: list[CollectiveRow]) -> None:
    a_step = ["blocks.0.down", "blocks.1.down", "blocks.1.up", "blocks.0.up"]
    first = [*a_step[:3], None]  # spans of forwards are kept from the first such collective on
    assert [row.module for row in tensor] == [*first, *a_step * (STEPS - 1)]
    assert {(row.op, row.origin, row.nbytes) for row in tensor} == {("all_reduce", "dtensor", 4 * 4 * 16)}
