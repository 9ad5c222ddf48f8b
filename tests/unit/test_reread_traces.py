"""Verdicts on real traces that were wrong once, each by code, subject and number as the raw files have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptrace.analysis import savings
from ddptrace.analysis.device.digest import less_to_launch, scopes
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.render.headline import headline
from tests.unit.test_analysis_real_traces import analyzed


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings]


def test_broadcasts_of_buffers_are_a_saving_and_their_advice_comes_before_that_on_smaller_ones(
    shared_traces: Path,
) -> None:
    """Raw: the device idles for 37.2 of 222 ms while DDP packs and sends buffers; bucket 0 exposes 3.3 ms."""
    result = analyzed(shared_traces / "ddp-a100")
    found = {row.cause: row for row in result.savings}
    assert found[savings.BUFFERS].cost_ratio == pytest.approx(0.167, abs=0.005)
    assert found[savings.BUFFERS].finding == "buffer-broadcasts"
    assert codes(result).index("buffer-broadcasts") < codes(result).index("exposed-bucket")


def test_no_bucket_size_is_advised_where_the_step_computes_for_less_time_than_it_communicates(
    shared_traces: Path,
) -> None:
    """Raw: 183 ms of Gloo's ranges beside 32 ms of operators, one rank of 300."""
    result = analyzed(shared_traces / "odd" / "cpu_only_gloo_rank34.pt.trace.json.gz")
    shown = headline(result, summarize(result))
    assert result.savings[0].cause == savings.EXPOSED and shown.number == "81 %"
    assert "bucket_cap_mb" not in shown.first_step and "could be won" not in shown.words


def test_embedding_kernels_of_fbgemm_are_no_matrix_products(shared_traces: Path) -> None:
    """Raw, rank 1: 124 ms of split_embedding kernels, and 69 ms of sgemm, gemv and their like."""
    result = analyzed(shared_traces / "sampled-2of128" / "sampled_rank-1.json.gz")
    totals = dict.fromkeys(("matrix product", "other"), 0)
    for row in result.kernels:
        totals[row.category] = totals.get(row.category, 0) + row.total_ns
    assert round(totals["matrix product"] / 1e6) == 69 and round(totals["other"] / 1e6) == 168


def test_compiled_graphs_are_one_scope_over_all_ranks(shared_traces: Path) -> None:
    """Their hashes differ on each rank."""
    first = scopes(analyzed(shared_traces / "judged" / "8ranks-zero-h100"))["annotation"][0]
    assert first.name == "## Call CompiledFxGraph ##" and first.ratio == pytest.approx(0.58, abs=0.01)


@pytest.mark.parametrize(
    ("trace", "compiled"),
    [
        ("old-format/df_index_resolver.json.gz", True), ("odd/triton_example.json.gz", True),
        ("judged/tp8-vllm-b200", True), ("ddp-a100", False), ("judged/resnet50-4workers", False),
    ],
)  # fmt: skip
def test_what_is_compiled_is_not_told_to_be(shared_traces: Path, trace: str, compiled: bool) -> None:
    result = analyzed(shared_traces / trace)
    assert ("torch.compile, CUDA graphs" in less_to_launch(result)) is not compiled
    assert result.savings[0].finding == "launch-bound"


@pytest.mark.parametrize("name", ["distributed_info_not_found", "rank_non_gpu", "rank_not_found"])
def test_that_no_device_was_recorded_is_said_once(shared_traces: Path, name: str) -> None:
    told = codes(analyzed(shared_traces / "odd" / f"{name}.json.gz"))
    assert told.count("device-unseen") == 1 and "exec-missing" not in told


def test_a_loader_without_workers_is_known_where_stacks_are_recorded(shared_traces: Path) -> None:
    """Raw: `_SingleProcessDataLoaderIter` in the frame of `__next__`."""
    result = analyzed(shared_traces / "judged" / "data-bound-owlv2")
    assert "_SingleProcess" in result.savings[0].where and result.savings[0].finding == "data-bound"
