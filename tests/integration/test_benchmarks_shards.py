"""`python -m benchmarks shards`, as short as it can be: two settings on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.launch import environment

PROGRAM = """
import sys
from pathlib import Path
from benchmarks.shards import Options, bench_shards
from benchmarks.shards_program import Tried
from ddptrace.render.sheet import markdown

tried = (Tried("demand", 0, 0), Tried("kept, of 2", 2, 2, blocks=2, is_kept=True))
print(markdown(bench_shards(Options(("loopback",), tried, turns=1), Path(sys.argv[1]), print)))
"""


def test_a_setting_is_predicted_from_the_steps_of_another_one_and_its_memory_to_five_percent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads((tmp_path / "shards.json").read_text())["runs"]
    assert [(row["known"], row["asked"]) for row in run["rows"]] == [("demand", "kept, of 2")]
    assert all(row["step_ns"] > 0 for row in run["rows"])
    measured = run["peaks"]["measured"]
    assert measured["kept, of 2"] > 1.3 * measured["demand"]
    for name, nbytes in run["peaks"]["forecast"].items():
        assert abs(nbytes / measured[name.split(" → ")[1]] - 1) < 0.05
    assert "Peak memory: 2 predictions are off by" in done.stdout
