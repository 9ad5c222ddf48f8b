"""Every collective operation is declared once, and what others call it leads to its declaration."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import torch.distributed as dist

import ddptrace.ops
from ddptrace.capture.collectives.tap import operators
from ddptrace.load.foreign.identity import usual_op
from ddptrace.load.windows.backend_ranges import is_op
from ddptrace.load.windows.comm_kernels import UNKNOWN_OP, op_named
from ddptrace.ops import (
    BY_METHOD,
    BY_NAME,
    BY_OPERATOR,
    FACTORS,
    FAMILIES,
    OPS,
    SENT,
    UNKNOWN,
    Argument,
    Op,
    Root,
    family_of,
)

RANKS = 4


def test_every_operator_that_the_tap_finds_in_this_torch_is_declared() -> None:
    assert {op.name for op in operators()} <= BY_NAME.keys()


def test_the_tap_names_operations_as_they_are_declared() -> None:
    found = {op.overload.name().removeprefix("c10d::"): op.name for op in operators()}
    assert {operator: op.name for operator, op in BY_OPERATOR.items()}.items() <= found.items()


def tensors_taken(method: str) -> list[str]:
    """Names of the arguments of a `ProcessGroup` method that are tensors, in order: of its first overload."""
    signature = next(line for line in vars(dist.ProcessGroup)[method].__doc__.splitlines() if "(self:" in line)
    return re.findall(r"(\w+): (?:collections\.abc\.Sequence\[)*torch\.Tensor", signature)


METHODS: Final = [
    name
    for name, value in vars(dist.ProcessGroup).items()
    if "ProcessGroup, " in (value.__doc__ or "") and (name in BY_METHOD or "torch.Tensor" in value.__doc__)
]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_of_a_process_group_takes_the_tensors_that_are_declared(method: str) -> None:
    op = BY_METHOD[method]
    declared = op.family.arguments if op.arguments is None else op.arguments
    tensors = [argument for argument in declared if argument is not Argument.PEER]
    taken = tensors_taken(method)
    assert len(taken) == len(tensors)
    for name, argument in zip(taken, tensors, strict=True):
        if name.startswith(("output", "input")):  # others are called "tensors" or not at all
            assert name.startswith(argument.value)


ADDED: Final = """
import importlib.util, sys
import torch

spec = importlib.util.spec_from_file_location("ddptrace.ops", sys.argv[1])
ops = sys.modules["ddptrace.ops"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ops)

from ddptrace.capture.collectives import tap
tap.install()
tap.remove()

library = torch.library.Library("c10d", "FRAGMENT")
group = "__torch__.torch.classes.c10d.ProcessGroup process_group"
library.define(f"_swirl_base_(Tensor output, Tensor input, {group}) -> ()")

import torch.distributed as dist
from ddptrace.capture.collectives import fallback
from ddptrace.capture.surface import Patches
from ddptrace.load.foreign.identity import usual_op
from ddptrace.load.windows.backend_ranges import is_op

dist.ProcessGroup.swirl_base = original = lambda group, output, input: None
fallback.watch_process_group(patches := Patches(), None, None)
print([op.name for op in tap.operators() if "swirl" in op.overload.name()], dist.ProcessGroup.swirl_base is original)
print(usual_op("nccl:_swirl_base_"), usual_op("c10d::_swirl_base_"), ops.FACTORS["swirl"](4))
print(is_op("swirl", "gloo:swirl"), is_op("swirl", "gloo:all_gather"))
tapped = lambda: torch._C._dispatch_has_kernel_for_dispatch_key("c10d::_swirl_base_", "BackendSelect")
for change in (lambda: None, tap.install, tap.remove, tap.install):
    change()
    print(tapped())
"""


def test_an_operation_is_added_in_one_file(tmp_path: Path) -> None:
    # GIVEN an operation that torch has and the project does not know
    declared = """
    Op("swirl", ALL_GATHER, operator="_swirl_base_", spellings=("swirl_base",), gloo=("swirl",),
       methods=("swirl_base",)),
)

SPARSE: Final"""
    # WHEN one line is added to ops.py
    source = Path(ddptrace.ops.__file__).read_text()
    (ops := tmp_path / "ops.py").write_text(source.replace(")\n\nSPARSE: Final", declared, 1))
    done = subprocess.run([sys.executable, "-c", ADDED, str(ops)], capture_output=True, text=True, check=False)
    # THEN the tap and its fallback record it under its name, and all names of it in profiler files lead to it
    *names, before, tapped, removed, again = done.stdout.splitlines()
    assert names == ["['swirl'] False", "swirl swirl 0.75", "True False"], done.stderr
    # AND a tap that is put in place after torch got the operation sees it, though an earlier one did not
    assert (before, tapped, removed, again) == ("False", "True", "False", "True")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_all_that_profiler_files_call_an_operation_lead_to_it(op: Op) -> None:
    for spelling in op.spellings:
        assert usual_op(f"nccl:_{spelling}_") == op.name
    if op.operator is not None:
        assert usual_op(f"c10d::{op.operator}") == op.name


def test_no_name_stands_for_two_operations() -> None:
    names = [op.name for op in OPS]
    assert len(set(names)) == len(names)
    spellings = [spelling for op in OPS for spelling in op.spellings]
    assert len(set(spellings)) == len(spellings)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("all_reduce_of_tomorrow", "all_reduce"), ("allreduce_of_tomorrow", "all_reduce"), ("reduce_oop", "reduce"),
        ("reduce_scatter_of_tomorrow", "reduce_scatter"), ("recv_any_source", "recv"), ("barrier_", "barrier"),
        ("monitored_barrier", "monitored_barrier"), ("dispatch", ""), ("comm_hook", ""), ("", ""),
    ],
)  # fmt: skip
def test_an_operation_is_of_the_family_that_its_name_begins_with(name: str, family: str) -> None:
    assert family_of(name).name == family


def test_of_an_operation_that_nobody_declared_no_bandwidth_is_told() -> None:
    assert FACTORS.get("all_reduce_of_tomorrow") is None and UNKNOWN.ends_together is False


@pytest.mark.parametrize(
    ("name", "busbw", "sent"),
    [
        ("all_reduce", 1.5, 1.5), ("all_gather_into_tensor", 0.75, 0.75), ("reduce_scatter_tensor", 0.75, 0.75),
        ("all_to_all_single", 0.75, 0.75), ("broadcast", 1.0, 0.75), ("reduce", 1.0, 0.75),
        ("gather", 0.75, 0.1875), ("scatter", 0.75, 0.1875), ("send", 1.0, 1.0), ("recv", 1.0, 0.0),
    ],
)  # fmt: skip
def test_factors_of_four_ranks_are_those_of_nccl_tests_and_what_a_ring_sends(
    name: str, busbw: float, sent: float
) -> None:
    assert (FACTORS[name](RANKS), SENT[name](RANKS)) == (busbw, sent)


def test_a_barrier_has_no_bytes_to_tell_a_bandwidth_of() -> None:
    assert FACTORS.keys().isdisjoint({"barrier", "monitored_barrier"})


@pytest.mark.parametrize(
    ("kernel", "op"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL", "all_reduce"), ("ncclKernel_AllGather_RING_LL", "all_gather"),
        ("ncclDevKernel_Reduce_Sum_f32_RING", "reduce"), ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_SendRecv", UNKNOWN_OP),
    ],
)  # fmt: skip
def test_a_kernels_name_tells_the_family(kernel: str, op: str) -> None:
    assert op_named(kernel, ()) == op


def test_gloo_carries_a_reduce_scatter_out_as_an_all_reduce_and_what_is_not_known_in_any_range() -> None:
    assert is_op("reduce_scatter", "gloo:all_reduce") and not is_op("all_gather", "gloo:all_reduce")
    assert is_op("operation_of_tomorrow", "gloo:all_reduce")


def test_ranks_end_together_where_all_need_all_and_nowhere_else() -> None:
    together = {family.name for family in FAMILIES if family.ends_together}
    assert together == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"}
    roots = {family.name: family.root for family in FAMILIES if family.root is not None}
    assert roots == {"broadcast": Root.FROM, "scatter": Root.FROM, "reduce": Root.TO, "gather": Root.TO}
