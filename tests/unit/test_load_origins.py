"""Who wanted each collective of a trace that others recorded, told from what stands around its launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from foreign_files import ENGINE, MAIN, Event, event, kernel, load, nccl, node, op, said

from ddptrace.analysis.analyze import RunHead, analyze_rank, combine
from ddptrace.analysis.result import Result
from ddptrace.load.tables import Call

ACCUMULATE = "torch::autograd::AccumulateGrad"


def frame(name: str, begin: float, end: float, tid: Any = MAIN) -> Event:
    return event("python_function", name, tid, begin, end)


def calls_of(folder: Path, *events: Event) -> tuple[Call, ...]:
    return load(folder, *events).run.calls


def origin_of(folder: Path, *around: Event, op_name: str = "all_reduce", tid: Any = MAIN, **args: Any) -> str | None:
    """Of one collective launched at 50 within these ranges."""
    collective = nccl(1, 50, 60, 70, op_name, tid, **args)
    (call,) = calls_of(folder, op("aten::mm", 0, 5), *around, *collective)
    return call.origin


@pytest.mark.parametrize(
    ("name", "op_name", "origin"),
    [
        ("FSDP::pre_backward", "_all_gather_base", "fsdp"),
        ("FullyShardedDataParallel._post_backward_hook", "_reduce_scatter_base", "fsdp"),
        ("FullyShardedDataParallel.forward", "_all_gather_base", "fsdp"),
        ("FullyShardedDataParallel.forward", "all_reduce", None),  # the program's own, inside the model
        ("DistributedDataParallel.forward", "broadcast", "buffers"),
        ("DistributedDataParallel.forward", "all_reduce", None),
        ("All2All_Pooled_Req", "all_to_all", "embeddings"),
        ("## alltoall_bwd_single ##", "all_to_all", "embeddings"),
        ("_AllToAll", "all_to_all", None),  # no name of anything
        ("moe_dispatch", "all_to_all", "moe"),
        ("moe_dispatch", "all_reduce", None),
        ("combine(B)", "all_to_all", "moe"),
        ("dispatcher", "all_to_all", None),
        ("vllm::all_reduce", "all_reduce", "tensor-parallel"),
        ("_ReduceFromModelParallelRegion", "all_reduce", "tensor-parallel"),
        ("_CopyToModelParallelRegionBackward", "all_reduce", "tensor-parallel"),
        ("fused_all_gather_matmul", "_all_gather_base", "dtensor"),
        ("fused_scaled_matmul_reduce_scatter", "_reduce_scatter_base", "dtensor"),
        ("PP:1SEND_F3", "send", "pipeline"),
        ("PP:1F3", "all_reduce", None),
        ("Optimizer.step#NorMuon.step", "_all_gather_base", "optimizer"),
        ("## forward ##", "all_reduce", None),
    ],
)
def test_a_range_around_the_launch_tells(tmp_path: Path, name: str, op_name: str, origin: str | None) -> None:
    assert origin_of(tmp_path, said(name, 40, 100), op_name=op_name) == origin


@pytest.mark.parametrize(
    ("function", "op_name", "origin"),
    [
        ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py(300): unshard", "_all_gather_base", "fsdp"),
        ("/opt/lib/python3/site-packages/deepspeed/runtime/zero/stage3.py(1): f", "_reduce_scatter_base", "zero"),
        ("torch/distributed/pipelining/schedules.py(9): step", "send", "pipeline"),
        ("megatron/core/tensor_parallel/mappings.py(9): _reduce", "all_reduce", "tensor-parallel"),
        ("megatron/core/transformer/moe/token_dispatcher.py(9): dispatch", "all_to_all", "moe"),
        ("vllm/model_executor/layers/fused_moe/layer.py(9): forward", "all_to_all", "moe"),
        ("torch/utils/_python_dispatch.py(9): __torch_dispatch__", "all_to_all", None),
        ("torch/distributed/tensor/_redistribute.py(9): redistribute", "all_reduce", "dtensor"),
        ("torch/distributed/checkpoint/state_dict_saver.py(9): save", "all_gather", "checkpoint"),
        ("nn.Module: RowParallelLinear_3", "all_reduce", "tensor-parallel"),
        ("train.py(12): step", "all_reduce", "program"),
        ("torch/distributed/distributed_c10d.py(9): all_reduce", "all_reduce", None),  # anybody calls that
    ],
)
def test_a_python_function_around_the_launch_tells(
    tmp_path: Path, function: str, op_name: str, origin: str | None
) -> None:
    assert origin_of(tmp_path, frame(function, 40, 100), op_name=op_name) == origin


def test_the_innermost_range_that_tells_decides(tmp_path: Path) -> None:
    around = (said("DistributedDataParallel.forward", 20, 100), said("FSDP::pre_forward", 30, 90), said("mine", 40, 80))
    assert origin_of(tmp_path, *around, op_name="broadcast") == "fsdp"


@pytest.mark.parametrize(
    ("dtypes", "origins"),
    [
        (("Int", "Int", "Float", "Long"), ["rebuild", "rebuild", "buffers", "buffers"]),
        (("Int", "Int", "Int"), ["rebuild", "rebuild", "buffers"]),
        (("Int", "Float"), ["buffers", "buffers"]),  # a buffer of int32
    ],
)
def test_the_two_broadcasts_of_int32_in_ddps_forward_are_its_rebuild_and_no_buffers(
    tmp_path: Path, dtypes: tuple[str, ...], origins: list[str]
) -> None:
    forward = said("DistributedDataParallel.forward", 40, 40 + 50 * len(dtypes))
    calls: list[Event] = []
    for k, dtype in enumerate(dtypes):
        sent = nccl(k + 1, 50 + 50 * k, 60 + 50 * k, 70 + 50 * k, "broadcast")
        sent[2]["args"] |= {"Collective name": "broadcast", "In msg nelems": 8, "Out msg nelems": 8, "dtype": dtype}
        calls += sent
    assert [call.origin for call in calls_of(tmp_path, forward, *calls)] == origins


@pytest.mark.parametrize(
    ("description", "op_name", "origin"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "all_reduce", "tensor-parallel"),
        ("mesh_tp", "_reduce_scatter_base", "tensor-parallel"),
        ("mesh_pp", "send", "pipeline"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "all_to_all", "moe"),
        ("mesh_dp_shard_cp", "_all_gather_base", "fsdp"),
        ("default_pg", "all_reduce", None),
        ("mesh_tp", "barrier", None),
        ("https", "all_reduce", None),
    ],
)
def test_the_name_of_the_group_tells(tmp_path: Path, description: str, op_name: str, origin: str | None) -> None:
    asked = {"Process Group Name": "3", "Process Group Description": description}
    assert origin_of(tmp_path, op_name=op_name, **asked) == origin


def test_a_kernel_that_only_tensor_parallel_inference_has_tells(tmp_path: Path) -> None:
    replayed = event("cuda_runtime", "cudaGraphLaunch", MAIN, 10, 12, correlation=1)
    work = kernel("void vllm::cross_device_reduce_1stage<__half, 8>(RankData*)", 1, 20, 30)
    assert [call.origin for call in calls_of(tmp_path, replayed, work)] == ["tensor-parallel"]


def test_what_is_reduced_where_a_gradient_was_accumulated_is_that_gradient(tmp_path: Path) -> None:
    around = (node(10, 100, name=ACCUMULATE), op(ACCUMULATE, 20, 100, ENGINE))
    assert origin_of(tmp_path, *around, op_name="_reduce_scatter_base", tid=ENGINE) == "gradients"
    assert origin_of(tmp_path, *around, op_name="_all_gather_base", tid=ENGINE) is None


def test_what_was_launched_before_the_file_begins_is_like_others_of_its_kind(tmp_path: Path) -> None:
    sized = {"Collective name": "_all_gather_base", "In msg nelems": 8, "Out msg nelems": 16, "dtype": "Float"}
    early = kernel("ncclDevKernel_AllGather(x)", 99, 1, 4, stream=20, **sized)
    seen = nccl(1, 50, 60, 70, "_all_gather_base")
    seen[2]["args"] |= sized
    calls = calls_of(tmp_path, early, said("Optimizer.step#Adam.step", 40, 100), *seen)
    assert [(call.is_launch_recorded, call.origin) for call in calls] == [(False, "optimizer"), (True, "optimizer")]
    other = calls_of(tmp_path, early | {"args": early["args"] | {"In msg nelems": 9}}, *seen)
    assert [call.origin for call in other] == [None, None]


# A loop that all-reduces each gradient by itself after backward


def averaged(folder: Path, gradients: int, reductions: int, *, step_us: int = 1000) -> Result:
    """Two steps: a backward that accumulates so many gradients, then so many all-reduces, each of 10 us, then the
    update."""
    events: list[Event] = []
    for k in range(2):
        at = k * step_us
        events += [
            said(f"ProfilerStep#{k + 1}", at, at + step_us - 1),
            op("aten::mm", at + 1, at + 5),
            event("cuda_runtime", "cudaLaunchKernel", MAIN, at + 2, at + 3, correlation=10_000 + k),
            kernel("gemm", 10_000 + k, at + 4, at + 90),
            said("Optimizer.step#SGD.step", at + 900, at + 950),
        ]
        for i in range(gradients):
            events += [
                node(at + 10 + i, at + 11 + i, name=ACCUMULATE),
                op(ACCUMULATE, at + 10 + i, at + 11 + i, ENGINE),
            ]
        for i in range(reductions):
            begin = at + 100 + 20 * i
            events += nccl(1000 * (k + 1) + i, begin, begin + 5, begin + 15)
    loaded = load(folder, *events)
    return combine(RunHead("1.0", "", 0, 2, loaded.findings), [analyze_rank(loaded.run)])


def test_a_program_that_all_reduces_each_gradient_by_itself_is_told_to_bucket_them(tmp_path: Path) -> None:
    result = averaged(tmp_path, 20, 20)
    assert {row.origin for row in result.collectives} == {"gradients"}
    codes = {finding.code: finding for finding in result.findings}
    assert (
        "20 calls in a step" in codes["gradients-one-by-one"].message and codes["gradients-one-by-one"].where == "run"
    )
    assert "exposed-communication" not in codes
    assert [(row.kind, row.calls) for row in result.parallelism] == [("data-parallel", 40)]


def test_few_calls_are_not_told_to_be_fewer(tmp_path: Path) -> None:
    codes = {finding.code for finding in averaged(tmp_path, 8, 8).findings}
    assert "gradients-one-by-one" not in codes and "exposed-communication" in codes


def test_other_numbers_of_reductions_and_gradients_leave_the_origin_unknown(tmp_path: Path) -> None:
    result = averaged(tmp_path, 20, 21)
    assert {row.origin for row in result.collectives} == {None} and len(result.parallelism) == 0
    (told,) = (finding.message for finding in result.findings if finding.code == "exposed-communication")
    assert "all_reduce (origin unknown)" in told and "no gradients" not in told
