"""`python -m benchmarks whatif`, as short as it can be: two caps of a small model on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.launch import environment

COMMAND = [sys.executable, "-m", "benchmarks", "whatif", "--rates", "loopback", "--models", "mlp", "--no-fp16"]


def test_each_cap_is_predicted_from_the_other_ones_steps(tmp_path: Path) -> None:
    told = ["--caps", "5,100", "--no-sync", "1", "--turns", "1", "--out", str(tmp_path)]
    done = subprocess.run(
        [*COMMAND, *told], env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads((tmp_path / "whatif.json").read_text())["runs"]
    assert [(row["known"], row["asked"]) for row in run["rows"]] == [("cap 5", "cap 100"), ("cap 100", "cap 5")]
    assert all(row["step_ns"] > 0 for row in run["rows"])
    assert set(run["replays"]) == {"cap 5", "cap 100"}
    assert max(map(abs, run["replays"].values())) < 0.3
    assert "Held-out predictions" in done.stdout
