"""Why is compute slower while NCCL runs? On real traces of GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.answers.conftest import answered


def test_how_much_longer_kernels_take_beside_communication_is_told_with_what_takes_most(shared_traces: Path) -> None:
    said = answered(shared_traces / "old-format" / "control.json.gz").said("contention")
    assert re.search(
        r"342 kernels that would take 5\.59 ms alone took 42 % longer beside it\. This costs 2\.3[0-9] ms in 6 prof",
        said,
    )
    assert "most of it in at::native::vectorized_elementwise_kernel" in said
    assert "NCCL_MAX_CTAS" in said


@pytest.mark.parametrize("trace", ["ddp-a100", "dlrm-8ranks"])
def test_where_no_kernel_ran_both_alone_and_beside_communication_nothing_is_said(
    trace: str, shared_traces: Path
) -> None:
    assert answered(shared_traces / trace).said("contention") == ""
