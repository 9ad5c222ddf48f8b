"""`python -m benchmarks diff` with one small try: runs are made on hosts of their own, compared, and thrown away."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import hosts
from tests.conftest import need
from tests.launch import environment, server


def test_a_try_is_made_judged_and_written(tmp_path: Path) -> None:
    need(not hosts.refusal(), "network namespaces")
    words = ("--tries", "1", "--runs", "3", "--steps", "20", "--deviations", "8", "-o", str(tmp_path))
    well, said = server().run(["-m", "benchmarks", "diff", *words], 1, environment(), timeout_s=200)
    assert well, said
    told = json.loads((tmp_path / "diff.json").read_text())
    assert [len(told[name]) for name in ("tries", "real", "drawn")] == [1, 1, 1]
    (one,) = told["real"]
    assert one["change_ns"] > 0 and one["planted_ns"] > 0
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "diff.html", "diff.json", "diff.md", "ranks.log"}
