"""Kernels that communicate under names that no rule knows: named where the trace hints at it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_files import Event, kernel, launch, op, said, write

import ddptrace
from ddptrace.load.windows.comm_kernels import parse_rule
from ddptrace.ops import is_named_after_communication

CODE = "comm-kernel-suspected"
SETS = (
    "ddp-a100", "dlrm-8ranks", "old-format/control.json.gz", "old-format/df_index_resolver.json.gz", "sampled-2of128",
    "judged/8ranks-zero-h100", "judged/data-bound-owlv2", "judged/data-bound-resnet50-0workers",
    "judged/dlrm-blocked-copies", "judged/hipfree-resnet18", "judged/moe-dualpipe-deepep", "judged/no-steps-sglang",
    "judged/resnet50-4workers", "judged/tp8-vllm-b200",
)  # fmt: skip
ODD = ("bare_list_2021.json.gz", "mi250_minitoy_train_ROCm6_2_kineto.json.gz", "triton_example.json.gz",
       "distributed_info_not_found.json.gz", "rank_non_gpu.json.gz")  # fmt: skip


def codes(path: Path, *comm_kernels: str) -> dict[str, str]:
    """Message by code."""
    result = ddptrace.analyze(path, jobs=1, comm_kernels=comm_kernels)
    return {finding.code: finding.message for finding in result.findings}


def of_suspect(folder: Path, *events: Event) -> dict[str, str]:
    return codes(write(folder / "rank-0.json", events))


def exchange(where: str = "moe dispatch", name: str = "void mine::exchange<8>(int*)", long: int = 400) -> list[Event]:
    """A long kernel launched inside a range, beside a product outside of it."""
    product = launch(1, 0, 2), kernel("gemm", 1, 5, 1000)
    return [*product, said(where, 10, 20), launch(2, 12, 14), kernel(name, 2, 1000, 1000 + long)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dispatch(F)", True),
        ("## all2all_data:kjt ##", True),
        ("FusedDispatch", True),
        ("moe_combine", True),
        ("comm_stream", True),
        ("all_to_all_single", True),
        ("aten::combinations", False),
        ("common", False),
        ("ProfilerStep#3", False),
        ("attn(F)", False),
        ("commit", False),
    ],
)
def test_words_of_communication_are_whole_words(name: str, says: bool) -> None:
    assert is_named_after_communication(name) is says


def test_renamed_kernels_of_expert_parallelism_are_asked_about(shared_traces: Path, tmp_path: Path) -> None:
    # GIVEN a trace in which no rule knows the kernels of DeepEP
    text = (shared_traces / "judged" / "moe-dualpipe-deepep" / "train.json").read_text()
    assert "::ep::internode::" in text
    trace = tmp_path / "train.json"
    trace.write_text(text.replace("dpsk::ep::internode::", "strange::moved::"))
    # WHEN it is analyzed
    found = codes(trace)
    # THEN the finding takes the place of the one that says that nothing communicates
    assert CODE in found and "no-communication" not in found
    # AND names the kernels, by patterns that the option takes
    named = [one.split("'")[1] for one in found[CODE].split("--comm-kernel ")[1:]]
    assert {"strange::moved::dispatch", "strange::moved::combine"} <= set(named)
    assert all(parse_rule(pattern).pattern == pattern for pattern in named)
    # AND with them everything is counted again
    again = ddptrace.analyze(trace, jobs=1, comm_kernels=named)
    assert again.steps[0].comm_ns is not None and 112e6 < again.steps[0].comm_ns < 114e6
    assert CODE not in {finding.code for finding in again.findings}


@pytest.mark.parametrize("traces", [*SETS, *(f"odd/{file}" for file in ODD)])
def test_no_kernel_of_these_traces_is_asked_about(shared_traces: Path, traces: str) -> None:
    assert CODE not in codes(shared_traces / traces)


def test_a_long_kernel_in_such_a_range_is_asked_about(tmp_path: Path) -> None:
    assert "--comm-kernel 'mine::exchange'" in of_suspect(tmp_path, *exchange())[CODE]


def test_a_stream_with_such_a_name_is_one_too(tmp_path: Path) -> None:
    named = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "comm stream 7"}}
    events = [one for one in exchange("somewhere") if one["name"] != "gemm"]
    assert CODE not in of_suspect(tmp_path, *events)
    assert CODE in of_suspect(tmp_path, named, *events)


@pytest.mark.parametrize(
    "events",
    [
        exchange("attention"),  # the range says nothing
        exchange(name="void at::native::vectorized_elementwise_kernel<4>(int)"),  # known compute
        exchange(long=5),  # short
        [*exchange(), launch(3, 30, 31), kernel("void mine::exchange<8>(int*)", 3, 2000, 2400)],  # elsewhere too
        [*exchange(), op("mine::pack", 11, 15)],  # under an operator that computes
    ],
)
def test_others_are_not(tmp_path: Path, events: list[Event]) -> None:
    assert CODE not in of_suspect(tmp_path, *events)
