"""Kernels by category: complete to the nanosecond, with a speed only where the file tells the work."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from foreign_files import Event, event, kernel, launch, op, said, write

import ddptrace
from ddptrace.analysis.device.digest import categories, kernels, utilization
from ddptrace.analysis.device.kernels import PEAKS, Category, category_of, number_type, peak_flops_per_s
from ddptrace.analysis.result import Result
from ddptrace.load.tables import Operation, Work
from ddptrace.render.terminal import summary_text

SETS = (
    "judged/dlrm-blocked-copies/rank0.json.gz",
    "judged/data-bound-owlv2/o.json.gz",
    "judged/hipfree-resnet18/train_resnet18.json.gz",
    "judged/tp8-vllm-b200/eager_trace.json.gz",
    "ddp-a100/nccl_data.json.gz",
    "old-format/control.json.gz",
)
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")


@pytest.mark.parametrize("file", SETS)
def test_the_kernels_of_a_real_file_are_those_of_its_json_to_the_nanosecond(shared_traces: Path, file: str) -> None:
    with gzip.open(shared_traces / file) as packed:
        raw = json.loads(packed.read(), parse_float=Decimal)
    events = raw["traceEvents"] if isinstance(raw, dict) else raw
    total_ns: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for one in events:
        if one.get("ph") == "X" and str(one.get("cat")).lower() in DEVICE_CATEGORIES:
            total_ns[one["name"]] += int(Decimal(one["dur"]) * 1000)
            times[one["name"]] += 1
    found_ns: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for row in ddptrace.analyze(shared_traces / file, jobs=1).kernels:
        found_ns[row.name] += row.total_ns
        found[row.name] += row.events
    assert found == times and found_ns == total_ns


LARGEST = {
    "dlrm-blocked-copies": [Category.COMMUNICATION, Category.MATRIX],
    "data-bound-owlv2": [Category.REDUCTION, Category.MATRIX],
    "hipfree-resnet18": [Category.CONVOLUTION, Category.NORMALIZATION],
    "data-bound-resnet50-0workers": [Category.CONVOLUTION, Category.NORMALIZATION],
    "no-steps-sglang": [Category.MATRIX, Category.ATTENTION],
    "moe-dualpipe-deepep": [Category.COMMUNICATION, Category.MATRIX],
    "tp8-vllm-b200": [Category.MATRIX, Category.COMMUNICATION],
    "8ranks-zero-h100": [Category.MATRIX, Category.COMMUNICATION],
}


@pytest.mark.parametrize("folder", LARGEST)
def test_the_categories_of_a_real_run(shared_traces: Path, folder: str) -> None:
    result = ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)
    found = categories(result)
    assert [one.category for one in found[:2]] == LARGEST[folder]
    assert sum(one.ratio for one in found) == pytest.approx(1)
    assert sum(one.ratio for one in found if one.category == Category.OTHER) < 0.08


@pytest.mark.parametrize(
    ("folder", "flops", "mfu", "known"),
    [("data-bound-owlv2", 29_146_112_230_400, 0.0273, 0.99), ("8ranks-zero-h100", None, 0.19, 0.68)],
)
def test_the_utilization_of_a_real_run(
    shared_traces: Path, folder: str, flops: int | None, mfu: float, known: float
) -> None:
    used = utilization(ddptrace.analyze(shared_traces / "judged" / folder, jobs=1))
    assert used is not None
    assert used.ratio == pytest.approx(mfu, rel=0.05) and used.known_ratio == pytest.approx(known, abs=0.02)
    assert flops is None or used.flops == pytest.approx(flops, rel=0.01)


@pytest.mark.parametrize("folder", ["dlrm-blocked-copies", "hipfree-resnet18", "moe-dualpipe-deepep"])
def test_without_the_flops_of_most_there_is_no_utilization(shared_traces: Path, folder: str) -> None:
    assert utilization(ddptrace.analyze(shared_traces / "judged" / folder, jobs=1)) is None


NAMES = [
    ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)", Category.ELEMENTWISE),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 2, 128, 1>(float*)", Category.ELEMENTWISE),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, NormTwoOps> >", Category.REDUCTION),
    ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)", Category.REDUCTION),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", Category.NORMALIZATION),
    ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)", Category.NORMALIZATION),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64>(int)", Category.MATRIX),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16>(int)", Category.CONVOLUTION),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<2> > >(int)", Category.ATTENTION),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", Category.ATTENTION),
    ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", Category.MATRIX),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1", Category.MATRIX),
    ("triton_poi_fused__scaled_mm__to_copy_clone_div_0", Category.ELEMENTWISE),
    ("triton_red_fused__fused_rms_norm__unsafe_view_add_3", Category.NORMALIZATION),
    ("triton_per_fused__log_softmax_40", Category.REDUCTION),
    ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float> >(int)", Category.OPTIMIZER),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>(int)", Category.OTHER),
    ("_copy_tensor_kernel", Category.OTHER),
    ("void split_embedding_codegen_forward_unweighted_kernel<float>(fbgemm_gpu::FixedDivisor)", Category.OTHER),
]  # fmt: skip


@pytest.mark.parametrize(("name", "category"), NAMES)
def test_a_name_tells_the_category(name: str, category: Category) -> None:
    assert category_of(name, Work.COMPUTE, Operation.NONE, False, "") == category


def test_what_launched_a_kernel_tells_what_its_name_does_not() -> None:
    add, strange = NAMES[0][0], "strange_kernel"
    step = "Optimizer.step#Muon.step"
    told = [
        category_of(strange, Work.COMPUTE, Operation.CONVOLUTION, False, ""),
        category_of("volta_sgemm_64x64_nn", Work.COMPUTE, Operation.CONVOLUTION, False, ""),
        category_of(strange, Work.COMPUTE, Operation.MATRIX, True, ""),
        category_of(add, Work.COMPUTE, Operation.MATRIX, False, ""),
        category_of(add, Work.COMPUTE, Operation.NONE, False, step),
        category_of("gemm", Work.COMPUTE, Operation.MATRIX, True, step),
        category_of("gemm", Work.COMM, Operation.MATRIX, True, step),
        category_of("Memcpy DtoD (Device -> Device)", Work.MEMORY, Operation.NONE, False, step),
    ]
    assert told == [
        Category.CONVOLUTION, Category.CONVOLUTION, Category.MATRIX, Category.ELEMENTWISE, Category.OPTIMIZER,
        Category.MATRIX, Category.COMMUNICATION, Category.COPY,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "dtype", "name", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "c10::BFloat16", "gemm", 312),
        ("NVIDIA A100-SXM4-80GB", "float", "cutlass_80_tensorop_s1688gemm", 156),
        ("NVIDIA A100-SXM4-80GB", "float", "ampere_sgemm_64x64_nn", 19.5),
        ("NVIDIA A100-SXM4-80GB", "float", "gemm", None),  # TF32 or not: the name does not tell
        ("NVIDIA H100 80GB HBM3", "c10::Float8_e4m3fn", "nvjet", 1978.9),
        ("NVIDIA H800", "c10::Half", "gemm", 989.4),
        ("NVIDIA H100 PCIe", "c10::Half", "gemm", 756),
        ("NVIDIA B200", "c10::BFloat16", "nvjet", 2250),
        ("AMD Instinct MI300X", "c10::BFloat16", "Cijk_", 1307.4),
        ("Tesla V100-DGXS-32GB", "float", "volta_sgemm_64x64_nt", 15.7),
        ("Tesla V100-DGXS-32GB", "c10::BFloat16", "gemm", None),
        ("NVIDIA GeForce RTX 4090", "c10::Half", "gemm", None),
        ("NVIDIA H100 NVL", "c10::Half", "gemm", None),
        ("", "c10::Half", "gemm", None),
    ],
)
def test_the_peak_is_that_of_the_device_and_the_type(device: str, dtype: str, name: str, tera: float | None) -> None:
    assert peak_flops_per_s(device, dtype, name) == (None if tera is None else pytest.approx(tera * 1e12))


def test_every_peak_says_where_it_is_stated() -> None:
    types = {number_type(dtype, "sgemm") for dtype in ("half", "float", "double")}
    assert all(peak.source and types <= set(peak.tflops) for peak in PEAKS)


# Files made by hand ---------------------------------------------------------------------------------------------------

GEMM_US, FLOPS = 10, 2 * 1024**3
SHAPES = {"Input Dims": [[1024, 1024], [1024, 1024]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}


def analyzed(folder: Path, device: str, **args: Any) -> Result:
    """One matrix product of 10 µs and an addition of 30 µs on the device."""
    events: list[Event] = [
        said("ProfilerStep#3", 0, 50),
        op("aten::mm", 1, 9, **args),
        launch(1, 2, 4),
        kernel("gemm", 1, 5, 5 + GEMM_US),
        launch(2, 10, 12),
        kernel("at::native::vectorized_elementwise_kernel", 2, 15, 45),
    ]
    path = write(folder / "rank-0.json", events, deviceProperties=[{"id": 0, "name": device}])
    return ddptrace.analyze(path, jobs=1)


def test_a_made_product_has_its_speed_and_its_part_of_the_peak(tmp_path: Path) -> None:
    result = analyzed(tmp_path, "NVIDIA A100-SXM4-40GB", **SHAPES)
    gemm = next(row for row in result.kernels if row.name == "gemm")
    assert (gemm.category, gemm.events, gemm.total_ns, gemm.mean_ns) == (Category.MATRIX, 1, 10_000, 10_000)
    assert gemm.flops == FLOPS and gemm.counted_ns == 10_000
    assert gemm.flops_per_s == pytest.approx(FLOPS / 10e-6)
    assert gemm.ideal_ns == round(FLOPS / 312e12 * 1e9)
    used = utilization(result)
    assert used is not None and used.ratio == pytest.approx(gemm.ideal_ns / 40_000)
    assert used.flops == FLOPS and used.known_ratio == 1
    assert "MFU 17 %" in summary_text(result)


def test_without_shapes_there_are_kernels_and_no_speeds(tmp_path: Path) -> None:
    result = analyzed(tmp_path, "NVIDIA A100-SXM4-40GB")
    assert {(row.flops, row.flops_per_s, row.ideal_ns, row.counted_ns) for row in result.kernels} == {
        (None, None, None, 0)
    }
    assert [one.category for one in kernels(result)] == [Category.ELEMENTWISE, Category.MATRIX]
    assert utilization(result) is None and "TFLOP/s" not in summary_text(result)


def test_an_unknown_device_has_speeds_and_no_peak(tmp_path: Path) -> None:
    result = analyzed(tmp_path, "Strange Accelerator 9000", **SHAPES)
    [product] = [one for one in categories(result) if one.category == Category.MATRIX]
    assert product.flops_per_s == pytest.approx(FLOPS / 10e-6) and product.peak_ratio is None
    assert utilization(result) is None and "MFU" not in summary_text(result)


def test_a_peak_of_several_devices_counts_each(tmp_path: Path) -> None:
    used = utilization(analyzed(tmp_path, "NVIDIA A100-SXM4-40GB", **SHAPES))
    other = event("kernel", "at::native::vectorized_elementwise_kernel", 7, 5, 45, pid=1, correlation=9)
    path = tmp_path / "rank-0.json"
    raw = json.loads(path.read_text())
    raw["traceEvents"].append(other)
    path.write_text(json.dumps(raw))
    both = utilization(ddptrace.analyze(path, jobs=1))
    assert used is not None and both is not None and both.ratio == pytest.approx(used.ratio / 2)
