"""Tells which kernels took the devices' time, by name and category, and how fast beside the peak.

The category is what kind of work a kernel does: told by its name, and by the operator and the range around its launch.

void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)
     ├──────── the function's own name: asked first ────────┤├─ then all of it ───────┤
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.statistics import alike
from ddptrace.analysis.tables.device import KernelRow
from ddptrace.load.tables import DeviceWork, Operation, Work

NS_PER_S: Final = 1e9


def kernel_rows(view: RankView) -> list[KernelRow]:
    """Add up all device work of a rank's profiler windows by category and name, the longest first.

    The rows' `total_ns` add up to the durations of all kernels, copies and fills in the rank's files.
    """
    sums: defaultdict[tuple[str, str], _Sum] = defaultdict(_Sum)
    for window in view.device.profiled:
        for key, part in _sums(window.work, view.rank.device):
            sums[key].add(part)
    rows = [part.row(view.rank.rank, *key) for key, part in sums.items()]
    return sorted(rows, key=lambda row: (-row.total_ns, row.category, row.name))


class _Sum:
    """What some pieces of device work amount to."""

    def __init__(self, events: int = 0, total_ns: int = 0) -> None:
        self.events, self.total_ns = events, total_ns
        self.counted_ns = self.flops = 0
        self.ideal_ns: float | None = 0.0

    def add(self, other: _Sum) -> None:
        self.events += other.events
        self.total_ns += other.total_ns
        self.counted_ns += other.counted_ns
        self.flops += other.flops
        known = self.ideal_ns is not None and other.ideal_ns is not None
        self.ideal_ns = (self.ideal_ns or 0.0) + (other.ideal_ns or 0.0) if known else None

    def row(self, rank: int, category: str, name: str) -> KernelRow:
        is_counted = self.counted_ns > 0
        return KernelRow(
            rank,
            category,
            name,
            self.events,
            self.total_ns,
            round(self.total_ns / self.events),
            self.counted_ns,
            self.flops if is_counted else None,
            self.flops / self.counted_ns * NS_PER_S if is_counted and self.flops else None,
            round(self.ideal_ns) if is_counted and self.flops and self.ideal_ns is not None else None,
        )


def _sums(work: DeviceWork, device: str) -> Iterator[tuple[tuple[str, str], _Sum]]:
    """By category and name, in parts: work that one name, operator and range has in common."""
    found = alike(*_columns(work))
    counts, times = found.counts.tolist(), found.sums(work.end_at_ns - work.begin_at_ns).tolist()
    dtypes = () if work.counts is None else work.counts.dtypes
    for nth, (name, kind, operation, is_main, annotation, dtype) in enumerate(found.keys.tolist()):
        around = work.names[annotation] if annotation >= 0 else ""
        category = category_of(work.names[name], Work(kind), Operation(operation), bool(is_main), around)
        part = _Sum(counts[nth], times[nth])
        if dtype >= 0 and work.counts is not None:  # known, if only as those of another kernel
            mine = found.order[found.first[nth] : found.first[nth + 1]]
            part.counted_ns, part.flops = part.total_ns, sum(work.counts.flops[mine].tolist())
            peak = peak_flops_per_s(device, dtypes[dtype], work.names[name]) if part.flops else 1.0
            part.ideal_ns = None if peak is None else part.flops / peak * NS_PER_S
        yield (category, work.names[name]), part


def _columns(work: DeviceWork) -> tuple[Ints, ...]:
    """What decides on the category and the peak of each piece of work."""
    counts, kind = work.counts, work.kind.astype(np.int64)
    if counts is None:
        nothing = np.zeros(len(kind), np.int64)
        return work.name, kind, nothing, nothing, work.annotation, nothing - 1
    is_main = (counts.flops > 0).astype(np.int64)
    return work.name, kind, counts.operation.astype(np.int64), is_main, work.annotation, counts.dtype


# What kind of work a kernel does --------------------------------------------------------------------------------------


class Category(StrEnum):
    """What a kernel, copy or fill is for."""

    MATRIX = "matrix product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORMALIZATION = "normalization"
    REDUCTION = "reduction"  # softmax and losses among them
    ELEMENTWISE = "elementwise"
    OPTIMIZER = "optimizer"
    COPY = "copy"  # or fill
    COMMUNICATION = "communication"
    OTHER = "other"


NORMS: Final = r"(?:layer|rms|batch|group|instance)_?norm"
RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), category)
    for pattern, category in (
        (r"reshape_and_cache|store_?kv", Category.OTHER),
        (r"^triton_poi_|^triton_for_", Category.ELEMENTWISE),
        (rf"^triton_(?:red|per)_.*{NORMS}", Category.NORMALIZATION),
        (r"^triton_(?:red|per)_", Category.REDUCTION),
        (r"^triton_tem_.*attention", Category.ATTENTION),
        (r"^triton_tem_", Category.MATRIX),
        (r"flash|fmha|attention|attn|sdpa|\bmha", Category.ATTENTION),
        (r"conv(?!ert)|fprop|dgrad|wgrad|winograd|scudnn|igemm_(?:fwd|bwd|wrw)|im2col", Category.CONVOLUTION),
        (rf"{NORMS}|\bbn_(?:fw|bw)|\bln_(?:fwd|bwd)|GammaBeta|RowwiseMoments", Category.NORMALIZATION),
        (r"multi_tensor_apply|adam|\blamb(?!da)|\bsgd", Category.OPTIMIZER),
        (r"(?<!fb)gemm|gemv|Cijk_|nvjet|splitk|matmul|xmma|\bbmm_|\bdot_kernel", Category.MATRIX),
        (r"reduce|softmax|nll_loss|cross_?entropy|logsumexp|argm(?:ax|in)", Category.REDUCTION),
        (
            r"elementwise|CatArrayBatchedCopy|dropout|act_and_mul|swiglu|silu|gelu|rotary|cast|quant",
            Category.ELEMENTWISE,
        ),
    )
)
"""The first that fits counts."""
CATEGORY_OF_OPERATION: Final = {
    Operation.MATRIX: Category.MATRIX,
    Operation.ATTENTION: Category.ATTENTION,
    Operation.CONVOLUTION: Category.CONVOLUTION,
}
CATEGORIES_OF_UPDATE: Final = frozenset((Category.NORMALIZATION, Category.REDUCTION, Category.ELEMENTWISE, None))
"""What an optimizer's own arithmetic looks like. A matrix product inside of an update stays one."""
OPTIMIZER_RANGE: Final = "Optimizer."
"""How torch begins the name of the range around an update."""


def category_of(name: str, kind: Work, operation: Operation, is_main: bool, annotation: str) -> Category:
    """Tell the category of one kernel, copy or fill.

    Args:
        name: Its name in the file.
        kind: What the device was busy with.
        operation: What kind of operator launched it.
        is_main: It is the kernel that does that operator's counted work.
        annotation: The innermost range around the launch; empty where there is none.
    """
    if kind is Work.COMM:
        return Category.COMMUNICATION
    if kind is Work.MEMORY:
        return Category.COPY
    if is_main:
        return CATEGORY_OF_OPERATION[operation]
    told = category_named(name)
    if annotation.startswith(OPTIMIZER_RANGE) and told in CATEGORIES_OF_UPDATE:
        return Category.OPTIMIZER
    if told is None or told is Category.MATRIX:  # some convolutions and attentions multiply matrices
        return CATEGORY_OF_OPERATION.get(operation, told or Category.OTHER)
    return told


@functools.lru_cache(65536)
def category_named(name: str) -> Category | None:
    """Tell the category of a kernel of this name; None where the name tells none."""
    plain = name.replace("(anonymous namespace)::", "")
    own = re.split(r"[<(]", plain, maxsplit=1)[0]
    return next((category for text in (own, plain) for rule, category in RULES if rule.search(text)), None)


# How much a device can compute at most --------------------------------------------------------------------------------


TERA: Final = 1e12


@dataclass(frozen=True, slots=True)
class Peak:
    """One kind of device."""

    name: str  # a regular expression for the name that a profiler file gives
    tflops: dict[str, float] = field(hash=False)  # by type of number, 10^12 operations a second
    source: str  # where the maker states it


HOPPER_SXM: Final = {
    "fp8": 1978.9,
    "int8": 1978.9,
    "bf16": 989.4,
    "fp16": 989.4,
    "tf32": 494.7,
    "fp32": 66.9,
    "fp64": 66.9,
}
PEAKS: Final = (
    Peak(
        r"V100-(?:SXM|DGXS)",
        {"fp16": 125.0, "fp32": 15.7, "fp64": 7.8},
        "NVIDIA V100 Tensor Core GPU data sheet (2020), V100 SXM2",
    ),
    Peak(
        r"V100-PCIE",
        {"fp16": 112.0, "fp32": 14.0, "fp64": 7.0},
        "NVIDIA V100 Tensor Core GPU data sheet (2020), V100 PCIe",
    ),
    Peak(
        r"\bA[18]00\b",
        {"int8": 624.0, "bf16": 312.0, "fp16": 312.0, "tf32": 156.0, "fp32": 19.5, "fp64": 19.5},
        "NVIDIA A100 Tensor Core GPU data sheet (2021)",
    ),
    Peak(
        r"\bH100 PCIe",
        {"fp8": 1513.0, "int8": 1513.0, "bf16": 756.0, "fp16": 756.0, "tf32": 378.0, "fp32": 51.0, "fp64": 51.0},
        "NVIDIA H100 Tensor Core GPU data sheet (2023), H100 PCIe, half of the figures with sparsity",
    ),
    Peak(
        r"\bH100(?: SXM\d?)?(?: \d+GB HBM3)?$",
        HOPPER_SXM,
        "NVIDIA H100 Tensor Core GPU data sheet (2023), H100 SXM, half of the figures with sparsity",
    ),
    Peak(
        r"\bH800(?: SXM\d?)?$",
        HOPPER_SXM | {"fp64": 1.0},
        "NVIDIA H800 Tensor Core GPU data sheet (2023), H800 SXM, half of the figures with sparsity",
    ),
    Peak(
        r"\bH200(?: SXM\d?)?$",
        HOPPER_SXM,
        "NVIDIA H200 Tensor Core GPU data sheet (2024), H200 SXM, half of the figures with sparsity",
    ),
    Peak(
        r"\bB200$",
        {"fp8": 4500.0, "int8": 4500.0, "bf16": 2250.0, "fp16": 2250.0, "tf32": 1125.0, "fp32": 75.0, "fp64": 37.0},
        "NVIDIA HGX B200 data sheet (2024), an eighth of the board, half of the figures with sparsity",
    ),
    Peak(
        r"\bMI300X\b",
        {
            "fp8": 2614.9, "int8": 2614.9, "bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp32": 163.4, "fp64": 163.4,
        },
        "AMD Instinct MI300X data sheet (2023), matrix figures",
    ),
)  # fmt: skip
"""The first whose name fits counts. A device that is not here has no known peak."""
NUMBER_TYPES: Final = {
    "bfloat16": "bf16", "half": "fp16", "float16": "fp16", "double": "fp64", "float64": "fp64", "signed char": "int8",
    "int8": "int8", "char": "int8",
}  # fmt: skip
ON_TENSOR_CORES: Final = re.compile(r"tf32|tensorop|s1688", re.IGNORECASE)
ON_PLAIN_CORES: Final = re.compile(r"sgemm|ffma|simt|Cijk_.*_SB_", re.IGNORECASE)


def peak_flops_per_s(device: str, dtype: str, kernel: str) -> float | None:
    """Return how much the device can compute at most.

    Args:
        device: Its name in the profiler file.
        dtype: The type of the operands, as written there.
        kernel: The kernel's name: with operands in float32 it tells whether tensor cores multiply them as TF32.

    Returns:
        Operations per second; None where the device or the type is unknown, or the kernel does not tell.
    """
    peak = next((peak for peak in PEAKS if re.search(peak.name, device)), None)
    tflops = None if peak is None else peak.tflops.get(number_type(dtype, kernel))
    return None if tflops is None else tflops * TERA


def number_type(dtype: str, kernel: str) -> str:
    """Return the type in which a kernel multiplies, in the words of `Peak.tflops`; empty where that is unknown."""
    plain = dtype.removeprefix("c10::").removeprefix("torch.").lower()
    if plain.startswith("float8"):
        return "fp8"
    if plain in ("float", "float32"):
        return "tf32" if ON_TENSOR_CORES.search(kernel) else "fp32" if ON_PLAIN_CORES.search(kernel) else ""
    return NUMBER_TYPES.get(plain, "")
