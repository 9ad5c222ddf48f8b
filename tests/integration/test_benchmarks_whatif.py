"""`python -m benchmarks whatif`, as short as it can be: two caps of a small model on this host."""

from __future__ import annotations

import json
from pathlib import Path

from tests.launch import environment, server

COMMAND = ["-m", "benchmarks", "whatif", "--rates", "loopback", "--models", "mlp", "--no-fp16"]


def test_each_cap_is_predicted_from_the_other_ones_steps(tmp_path: Path) -> None:
    told = ["--caps", "5,100", "--no-sync", "1", "--turns", "1", "--out", str(tmp_path)]
    well, said = server().run([*COMMAND, *told], 1, environment(), timeout_s=200)
    assert well, said
    (run,) = json.loads((tmp_path / "whatif.json").read_text())["runs"]
    assert [(row["known"], row["asked"]) for row in run["rows"]] == [("cap 5", "cap 100"), ("cap 100", "cap 5")]
    assert all(row["step_ns"] > 0 for row in run["rows"])
    assert set(run["replays"]) == {"cap 5", "cap 100"}
    assert max(map(abs, run["replays"].values())) < 0.3
    assert "Held-out predictions" in said
