"""The most that devices can compute, as their makers state it: dense operations, no sparsity, at the boost clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

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
TYPES: Final = {
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
    return TYPES.get(plain, "")
