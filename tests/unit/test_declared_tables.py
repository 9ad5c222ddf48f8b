"""A table is declared once: what follows from a declaration, for the tables that there are and for one more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from click.testing import CliRunner

from ddptrace.analysis.result import TABLES, Result
from ddptrace.analysis.tables.declare import in_steps
from ddptrace.analysis.tables.table import Table
from ddptrace.cli import main
from ddptrace.cli.analyze import encoded
from tests.made import empty_result, make_result
from tests.unit.made_device import make_device_result
from tests.unit.made_meetings import met_result, played_result
from tests.unit.made_training import Plan
from tools.docsite.json_schema import analysis_schema

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
MADE: Final = {
    "made": make_result,
    "device": make_device_result,
    "met": met_result,
    "played": lambda: played_result(Plan(), ("one", "two")),
    "empty": empty_result,
}


@pytest.mark.parametrize("name", TABLES)
def test_key_and_cut_name_columns_of_the_table(name: str) -> None:
    table, columns = TABLES[name], Table(TABLES[name].row_type).columns
    assert set(table.key) <= set(columns)
    assert table.cut is not in_steps or "step" in columns
    assert (table.of_rank is None) == (table.cut is None)


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.key])
def test_no_two_rows_have_the_same_key(name: str) -> None:
    for table in (getattr(make(), name) for make in (make_result, MADE["played"])):
        keys = [tuple(getattr(row, column) for column in TABLES[name].key) for row in table]
        assert len(keys) == len(set(keys))


def test_json_has_all_tables_in_the_order_of_their_declaration() -> None:
    keys = list(make_result().to_json_dict())
    assert keys[-len(TABLES) :] == list(TABLES)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_the_json_is_as_its_schema_says(make: Any) -> None:
    schema = analysis_schema()
    found = json.loads(b"".join(encoded(make())))
    jsonschema.Draft202012Validator(schema).validate(found)
    assert found.keys() == schema["properties"].keys()
    # A wrong type, and a column that is missing
    for wrong in ({**found, "schema": 1}, {**found, "ranks": [{"rank": 0}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_file_that_analyze_writes_is_as_the_schema_says(tmp_path: Path) -> None:
    run = REPOSITORY / "tests" / "recorded" / "on_a_device" / "slow"
    done = CliRunner().invoke(main, ["analyze", str(run), "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "analysis.json").read_text())
    jsonschema.Draft202012Validator(analysis_schema()).validate(found)
    assert found["summary"]["window"] is None and found["summary"]["typical"]["wall_ns"] > 0


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_everything_in_the_json_is_an_attribute_of_the_result(make: Any) -> None:
    result = make()
    found = json.loads(b"".join(encoded(result)))
    assert {name for name in found if not hasattr(result, name)} == set()
    assert {name for name in found["summary"] if not hasattr(result.summary, name)} == set()
    assert found["summary"]["wall_ns"] == result.summary.wall_ns


# One more table, made as a developer would ----------------------------------------------------------------------------


ROW: Final = '''

@dataclass(frozen=True, slots=True)
class LaunchGapRow:
    """The time between two neighbouring launches of a rank in one step."""

    rank: int  # global rank
    step: int  # ordinal of the step
    later_at_ns: int  # the later launch
    gap_ns: int  # from the earlier launch to the later one
'''
MAKER: Final = '''

def launch_gap_rows(view: RankView) -> list[LaunchGapRow]:
    """List the gaps between launches, in time order."""
    at = [comm.launch_at_ns for comm in view.comms]
    steps = view.steps.at(np.array(at, np.int64)).tolist()
    pairs = zip(steps, at, steps[1:], at[1:], strict=False)
    return [
        LaunchGapRow(view.rank.rank, view.rank.steps[step].ordinal, later, later - before)
        for earlier, before, step, later in pairs
        if step >= 0 and earlier == step
    ]
'''
FIELD: Final = """    launch_gaps: Table[LaunchGapRow] = rank_table(
        LaunchGapRow, launch_gap_rows, key=("rank", "later_at_ns")
    )  # time between launches
"""
BEFORE_FINDINGS: Final = "    findings: Table[Finding]"
SEEN: Final = """
import json
from ddptrace.analysis.clocks.aligned import aligned_tables
from ddptrace.analysis.analyze import RunHead, analyze_rank, combine
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.live.watched import cut
from ddptrace.live.watched import joined
from made_training import Plan, Player
from tools.docsite.json_schema import analysis_schema
from tools.docsite.tables import tables_page

ranks = [analyze_rank(run) for run in Player(Plan()).runs()]
rows = ranks[1].rows["launch_gaps"]
moved = aligned_tables([ranks[1]], [ClockRow(1, 0, 0, 10**6, 500, 0.0, 1, 1, 5, True, "fitted")])[0].rows["launch_gaps"]
parts = [cut(ranks[1], range(0, 3)), cut(ranks[1], range(3, 5))]
result = combine(RunHead("1.0", "5f1e" * 8, 0, 2, ()), ranks)
print(json.dumps({
    "rows": len(rows),
    "moved": sorted({before.later_at_ns - after.later_at_ns for before, after in zip(rows, moved)}),
    "steps": sorted({row.step for row in joined(parts).rows["launch_gaps"]}),
    "json": [list(row) for row in result.to_json_dict()["launch_gaps"]][:1],
    "ranks": sorted({row.rank for row in result.launch_gaps}),
    "frame": list(result.launch_gaps.columns),
    "page": [line for line in tables_page().splitlines() if "launch_gaps`" in line or "`gap_ns`" in line],
    "schema": analysis_schema()["properties"]["launch_gaps"]["items"]["properties"]["gap_ns"],
}))
"""


def test_one_more_table_takes_three_files_and_is_everywhere(tmp_path: Path) -> None:
    for folder in ("ddptrace", "tools", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "integration", "hostile", "*.so")
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    rooms = tmp_path / "ddptrace" / "analysis"
    rows, maker, result = rooms / "tables/collectives.py", rooms / "collectives/rows.py", rooms / "result.py"
    # GIVEN the row with its columns, what makes it, and the declaration
    rows.write_text(rows.read_text() + ROW)
    named = "from ddptrace.analysis.tables.collectives import CollectiveRow"
    maker.write_text(_with(maker.read_text(), named, f"{named}, LaunchGapRow") + MAKER)
    text = _with(result.read_text(), BEFORE_FINDINGS, FIELD + BEFORE_FINDINGS)
    text = _with(text, "import collective_rows", "import collective_rows, launch_gap_rows")
    text = _with(text, "CollectiveRow, GroupRow, NcclRow\n", "CollectiveRow, GroupRow, LaunchGapRow, NcclRow\n")
    result.write_text(text)
    # WHEN runs are analyzed
    paths = os.pathsep.join(map(str, (tmp_path, tmp_path / "tests" / "unit")))
    command = [sys.executable, "-P", "-c", SEEN]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    seen = json.loads(done.stdout)
    # THEN the table is made, aligned, cut, joined, in the JSON, the frames, the reference and the schema
    columns = ["rank", "step", "later_at_ns", "gap_ns"]
    assert seen["rows"] > 10 and seen["moved"] == [500]
    assert seen["steps"] == [0, 1, 2, 3, 4]
    assert seen["json"] == [columns] and seen["ranks"] == [0, 1] and seen["frame"] == columns
    assert seen["page"] == [
        "| `launch_gaps` | list of [LaunchGapRow](#run-launchgaprow) |  | time between launches |",
        "### `launch_gaps`: LaunchGapRow { #run-launchgaprow }",
        "Key of `launch_gaps`: `rank`, `later_at_ns`.",
        "| `gap_ns` | int | ns | from the earlier launch to the later one |",
    ]
    assert seen["schema"] == {"type": "integer", "description": "from the earlier launch to the later one; ns"}


def _with(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def test_a_result_without_rows_has_every_table() -> None:
    bare = Result("1.0", "0" * 32, 0, None)
    assert {name: getattr(bare, name).row_type for name in TABLES} == {
        name: table.row_type for name, table in TABLES.items()
    }
    assert not any(len(getattr(bare, name)) for name in TABLES)
