"""Why does a 228-byte all-reduce take so long?"""

from __future__ import annotations

import re
from pathlib import Path

from tests.answers.conftest import Ask, answered
from tests.programs.asked import LATE_S

SPLIT = r"takes ([\d.]+) ms each time: ([\d.]+) ms of waiting .*?, and ([\d.]+) (ms|µs) of transfer"


def test_it_waits_for_a_rank_that_comes_late_and_both_parts_are_told(ask: Ask) -> None:
    said = ask("late agreement", "--profile").said("slow-message")
    assert re.match(r"all_reduce of only 228 B \(at asked\.py:\d+ in agree\) takes", said)
    whole, waits, transfer, unit = re.search(SPLIT, said).groups()  # type: ignore[union-attr]
    assert float(waits) > 0.3 * LATE_S * 1e3  # one rank of two waits, the other does not
    assert (1 if unit == "ms" else 1e-3) * float(transfer) < float(waits) < float(whole)
    assert "rank 1 is last in" in said and "by aligned clocks" in said
    assert "A faster link does not help" in said


def test_on_real_gpus_it_is_told_too(shared_traces: Path) -> None:
    said = answered(shared_traces / "dlrm-8ranks").said("slow-message")
    assert said.startswith("all_to_all of only 24.6 kB takes 1.8")
    assert re.search(r" 1\.8\d ms of waiting until the last rank arrives", said) and "rank 5 is last" in said
