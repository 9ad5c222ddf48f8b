"""The kinds of parallelism that a run shows, on real traces and hand-made records, and what findings make of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from analysis_records import call, ddp_call, layout, rank, reducer, run, step
from test_analysis_real_traces import analyzed

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.collectives.digest import collectives
from ddptrace.analysis.device.digest import scopes
from ddptrace.analysis.result import Result
from ddptrace.load.tables import Identity
from ddptrace.render.report import page
from ddptrace.render.terminal import summary_text

MS = 1_000_000
KINDS = {
    "judged/8ranks-zero-h100": {"zero": 8},
    "judged/tp8-vllm-b200": {"tensor-parallel": 8, "inference": None},
    "judged/no-steps-sglang": {"inference": None},
    "judged/moe-dualpipe-deepep": {"expert-parallel": 64},
    "judged/data-bound-owlv2": {"inference": None},
    "judged/data-bound-resnet50-0workers": {},
    "judged/resnet50-4workers": {},
    "judged/hipfree-resnet18": {},
    "judged/dlrm-blocked-copies": {"ddp": None, "sharded-embeddings": None},
    "ddp-a100": {"ddp": 2},
    "dlrm-8ranks": {"ddp": 8, "sharded-embeddings": 8},
    "sampled-2of128": {"ddp": None, "zero": None, "sharded-embeddings": None},
    "old-format/control.json.gz": {"ddp": 8, "sharded-embeddings": 8},
    "old-format/df_index_resolver.json.gz": {"data-parallel": 2},
    "odd/bare_list_2021.json.gz": {},
    "odd/cpu_only_gloo_rank34.pt.trace.json.gz": {"ddp": None},
    "odd/cuda_event_sync.json.gz": {},
    "odd/distributed_info_not_found.json.gz": {"sharded-embeddings": None},
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz": {},
    "odd/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": {},
    "odd/triton_example.json.gz": {},
}
"""By set, the kinds and the ranks that share the work, None where the files do not tell."""


def codes(result: Result) -> dict[str, str]:
    return {finding.code: finding.message for finding in result.findings}


@pytest.mark.parametrize("name", KINDS)
def test_each_real_set_has_its_kinds_and_no_other(shared_traces: Path, name: str) -> None:
    result = analyzed(shared_traces / name)
    found = {row.kind: row.group_size for row in result.parallelism}
    assert found.keys() == KINDS[name].keys()
    assert {kind: size for kind, size in found.items() if KINDS[name][kind] is not None} == {
        kind: size for kind, size in KINDS[name].items() if size is not None
    }


@pytest.mark.parametrize("name", KINDS)
def test_no_real_set_is_told_that_unknown_communication_carries_no_gradients(shared_traces: Path, name: str) -> None:
    result = analyzed(shared_traces / name)
    assert all(row.origin for row in result.collectives) or "carries no gradients" not in " ".join(
        message for code, message in codes(result).items() if code == "exposed-communication"
    )


def test_a_sharded_optimizer_reduces_gradients_and_gathers_parameters(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged/8ranks-zero-h100")
    launched = [row for row in result.collectives if row.launch_recorded and row.part == 0]
    assert {(row.op, row.origin) for row in launched} == {
        ("reduce_scatter_tensor", "gradients"),
        ("reduce_scatter_tensor", "optimizer"),
        ("all_gather_into_tensor", "optimizer"),
    }
    assert {row.origin for row in result.collectives if not row.launch_recorded} == {None}  # nothing tells of these


def test_what_of_one_rank_is_exposed_is_told_by_what_it_carries(shared_traces: Path, tmp_path: Path) -> None:
    (file,) = (shared_traces / "judged/8ranks-zero-h100").glob("*-rank0-*")
    shutil.copy(file, tmp_path / "rank-0.json.gz")
    message = codes(analyzed(tmp_path))["exposed-communication"]
    told = re.search(r"([\d.]+) ms carry gradients and ([\d.]+) ms parameters", message)
    assert told is not None and "no gradients" not in message
    assert float(told[1]) > float(told[2])  # most is reduce-scatter of gradients


def test_gradients_that_are_reduced_one_by_one_are_to_be_bucketed(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "old-format/df_index_resolver.json.gz")
    assert {(row.op, row.origin) for row in result.collectives} == {("all_reduce", "gradients")}
    found = codes(result)
    assert "404 calls in a step" in found["gradients-one-by-one"] and "59.6 ms" in found["gradients-one-by-one"]
    assert "exposed-communication" not in found


def test_the_broadcasts_of_ddp_are_its_buffers(shared_traces: Path) -> None:
    rows = analyzed(shared_traces / "ddp-a100").collectives
    assert {(row.op, row.origin) for row in rows} == {("all_reduce", "gradients"), ("broadcast", "buffers")}
    assert sum(row.origin == "buffers" for row in rows) == 6


def test_tensor_parallelism_is_told_with_the_classes_of_its_modules(shared_traces: Path) -> None:
    result = analyzed(shared_traces / "judged/tp8-vllm-b200")
    assert {(row.origin, row.module) for row in result.collectives if row.op == "all_reduce"} == {
        ("tensor-parallel", "RowParallelLinear"),
        ("tensor-parallel", "FusedMoE"),
        ("tensor-parallel", "VocabParallelEmbedding"),
    }
    assert "fused optimizers" not in codes(result)["launch-bound"]


def test_modules_are_shown_by_class(shared_traces: Path) -> None:
    found = scopes(analyzed(shared_traces / "judged/tp8-vllm-b200"))["module"]
    rows = [row for row in analyzed(shared_traces / "judged/tp8-vllm-b200").scopes if row.kind == "module"]
    assert len(rows) == 328 and len(found) == 11
    assert (found[0].name, found[0].instances, found[0].events) == ("FusedMoE", 36, 432)
    assert sum(scope.events for scope in found) == sum(row.events for row in rows)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("judged/tp8-vllm-b200", "inference with vLLM · tensor parallel over 8 ranks"),
        ("judged/8ranks-zero-h100", "sharded optimizer (ZeRO) over 8 ranks"),
        ("ddp-a100", "data parallel (DDP) over 2 ranks"),
    ],
)
def test_the_kind_stands_at_the_top_of_terminal_and_report(shared_traces: Path, name: str, words: str) -> None:
    result = analyzed(shared_traces / name)
    assert summary_text(result).splitlines()[1] == words
    assert f"<span>{words}</span>" in page(result)


@pytest.mark.parametrize(
    ("name", "told", "absent"),
    [
        ("judged/data-bound-owlv2", "data 51 % · other 49 %", "forward 0 %"),
        ("odd/triton_example.json.gz", "Typical step", "other 100 %"),
        ("ddp-a100", "data 0 % · forward 46 %", "unknown"),
    ],
)
def test_phases_that_nothing_marked_are_not_printed(shared_traces: Path, name: str, told: str, absent: str) -> None:
    text = summary_text(analyzed(shared_traces / name))
    assert told in text and absent not in text


# Hand-made records ----------------------------------------------------------------------------------------------------


def stepped(*calls: Any, **fields: Any) -> Result:
    return analyze_run(run(rank(steps=[step(0, 0, 100 * MS)], calls=calls, **fields)))


def exposed(seq: int = 1, **fields: Any) -> Any:
    return call(seq, 40 * MS, ran=(40 * MS, 90 * MS), waits=((40 * MS, 90 * MS),), **fields)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"origin": "fsdp", "op": "all_gather_into_tensor"}, "fsdp"),
        ({"origin": "zero", "op": "reduce_scatter_tensor"}, "zero"),
        ({"origin": "optimizer", "op": "broadcast"}, "zero"),
        ({"origin": "optimizer", "op": "all_reduce"}, None),  # such as the norm of gradients
        ({"origin": "dtensor"}, "tensor-parallel"),
        ({"origin": "pipeline", "op": "send"}, "pipeline-parallel"),
        ({"origin": "moe", "op": "all_to_all_single"}, "expert-parallel"),
        ({"origin": "program"}, None),
        ({"origin": "gradients"}, None),  # of a reducer that is not known
        ({"origin": "gradients", "identity": Identity.NAME}, "data-parallel"),
        ({"origin": None}, None),
    ],
)
def test_a_recorded_run_shows_its_kinds_by_the_origins_of_its_collectives(
    fields: dict[str, Any], kind: str | None
) -> None:
    assert [row.kind for row in stepped(exposed(**fields)).parallelism] == [kind] * (kind is not None)


def test_a_recorded_reducer_is_data_parallel() -> None:
    sent = ddp_call(1, 40 * MS, 24, ran=(40 * MS, 90 * MS))
    result = stepped(sent, reducers=[reducer((1, 2, 3), layout(0, 0, (0, 1, 2)))])
    assert [(row.kind, row.told_by) for row in result.parallelism] == [("ddp", "DistributedDataParallel")]


def test_a_reducer_that_sends_nothing_beside_other_units_is_no_data_parallelism() -> None:
    """Of a model that the process holds and this run does not train."""
    unused = [reducer((1, 2, 3), layout(0, 0, (0, 1, 2)))]
    result = stepped(exposed(origin="fsdp", op="all_gather_into_tensor"), reducers=unused)
    assert [row.kind for row in result.parallelism] == ["fsdp"]
    assert [row.kind for row in stepped(reducers=unused).parallelism] == ["ddp"]


def test_operators_on_tensors_that_fsdp_sharded_are_no_tensor_parallelism() -> None:
    norm = call(2, 91 * MS, ran=(91 * MS, 92 * MS), origin="dtensor", group="0")
    result = stepped(exposed(origin="fsdp", op="all_gather_into_tensor", group="0"), norm)
    assert [row.kind for row in result.parallelism] == ["fsdp"]


@pytest.mark.parametrize(
    ("fields", "advised"),
    [
        ({"origin": "tensor-parallel"}, "sequence parallelism"),
        ({"origin": "dtensor"}, "exposed by nature"),
        ({"origin": "embeddings", "op": "all_to_all"}, "TrainPipelineSparseDist"),
        ({"origin": "optimizer", "op": "reduce_scatter_tensor"}, "reduce gradients while backward computes"),
        ({"origin": "optimizer", "op": "all_gather_into_tensor"}, "gather parameters while the next forward"),
    ],
)
def test_what_to_try_is_of_the_kind_of_parallelism(fields: dict[str, Any], advised: str) -> None:
    message = codes(stepped(exposed(**fields)))["exposed-communication"]
    assert advised in message and "async_op" not in message and "bucket_cap_mb" not in message


def test_a_collective_of_unknown_origin_is_said_to_be_one() -> None:
    result = stepped(exposed(origin=None))
    message = codes(result)["exposed-communication"]
    assert "(origin unknown)" in message and "gradients" not in message
    assert "origin unknown" in summary_text(result)
    assert [kind.origin for kind in collectives(result).kinds] == [None]
