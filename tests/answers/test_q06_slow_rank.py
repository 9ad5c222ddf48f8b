"""Which node is slow?"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.answers.conftest import Ask, answered
from tests.programs.asked import LATE_S

pytestmark = pytest.mark.alone  # a machine that is crowded by others silences this finding

COST = (
    r"Rank 1 makes the others wait: its {} phase costs every rank ([\d.]+) ms of a step"
    r" \(([\d.]+) % of the typical step of [\d.]+ m?s; 95 % interval"
)


def test_the_rank_is_named_with_its_phase_what_that_costs_and_where_to_look(ask: Ask) -> None:
    said = ask("late data").said("late-rank")
    found = re.search(COST.format("data"), said)
    assert found and 0.5 * LATE_S < float(found[1]) / 1e3 < 2.5 * LATE_S
    assert said.endswith("Look at what its data loader reads, and from where.")


def test_of_several_nodes_the_slow_one_is_named(ask: Ask, tmp_path: Path) -> None:
    """The same records, as two machines would have written them."""
    run = Path(shutil.copytree(ask("late data").run, tmp_path / "nodes"))
    meta = run / "rank-00001" / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"host": "node1"}))
    assert answered(run).said("late-rank").startswith("Rank 1 on host node1 makes the others wait: its data phase")
