"""How do I see all ranks on one timeline?"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from ddptrace.render.trace.chrome import write_trace
from tests.answers.conftest import Ask, answered
from tests.shifted_run import Wrong, shifted_run


def events(answer: Any, folder: Path) -> list[dict[str, Any]]:
    write_trace(answer.result, folder / "trace.json.gz")
    told: list[dict[str, Any]] = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    return told


def test_the_files_of_eight_gpus_become_one_trace_with_a_process_for_each_rank(
    shared_traces: Path, tmp_path: Path
) -> None:
    merged = events(answered(shared_traces / "dlrm-8ranks"), tmp_path)
    names = {event["args"]["name"] for event in merged if event["name"] == "process_name"}
    assert {f"rank {rank}" for rank in range(8)} <= {" ".join(name.split()[:2]) for name in names}


def test_a_clock_that_is_wrong_is_set_right_and_how_surely_is_told(ask: Ask, tmp_path: Path) -> None:
    """Rank 1's records are moved by 50 ms, as a clock that is wrong by so much would have written them."""
    right = ask("accumulated")
    assert "clocks" not in right.text.partition("Findings")[0]
    wrong = answered(shifted_run(right.run, tmp_path / "wrong", 1, Wrong(50_000_000, 0.0)))
    assert "up to 50." in wrong.said("clock-disagrees") or "up to 49." in wrong.said("clock-disagrees")
    assert re.search(r"clocks rank 1 .*?±", wrong.text)
    steps = [{row.rank: row.end_at_ns for row in one.result.steps if row.step == 10} for one in (right, wrong)]
    assert abs((steps[0][1] - steps[0][0]) - (steps[1][1] - steps[1][0])) < 5_000_000
