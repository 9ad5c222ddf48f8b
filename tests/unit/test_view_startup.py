"""What `ddptrace view` has the Perfetto UI do."""

from __future__ import annotations

import gzip
import json
import urllib.parse
from pathlib import Path

import pytest

from ddptrace.analysis.result import Result
from ddptrace.render.trace.chrome import write_trace
from ddptrace.view.site import PINS, Head, contents, head_of, queries, route, startup_commands
from tests.unit.made_meetings import met_result, with_all

WHOLE = Head(PINS, "")


def named(command: str, head: Head = WHOLE) -> list[object]:
    """Arguments of the commands of this name."""
    return [one["args"] for one in startup_commands(head) if one["id"] == f"dev.perfetto.{command}"]


def test_every_query_can_be_asked_by_its_name() -> None:
    made = [text.split(" as\n")[0] for [text] in named("RunQuery")]
    assert len(made) == 7
    assert made == [f"create or replace perfetto view {name}" for name in queries()]


def test_the_contents_tell_what_each_query_answers() -> None:
    told = contents({"late": "-- Who's late, and how\n-- often. And more.\nselect 1", "all": "-- All.\nselect 2"})
    assert told == (
        "select 'select * from late' as query, 'Who''s late, and how often.' as answers\n"
        "union all select 'select * from all' as query, 'All.' as answers"
    )
    assert all(sql.startswith("-- ") for sql in queries().values())


def test_the_route_survives_the_way_the_ui_reads_it(tmp_path: Path) -> None:
    """It takes a plus for a space, and then what every reader of queries takes."""
    told = route("http://127.0.0.1:9001/x+y/run.json.gz", tmp_path / "missing")
    assert told.startswith("#!/?") and "+" not in told and "#" not in told[1:]
    read = dict(urllib.parse.parse_qsl(told.removeprefix("#!/?"), strict_parsing=True))
    assert read["url"] == "http://127.0.0.1:9001/x+y/run.json.gz"
    assert json.loads(read["startupCommands"]) == startup_commands(WHOLE)


def test_only_tracks_that_the_trace_holds_are_pinned(tmp_path: Path) -> None:
    made = write_trace(with_all(met_result(4, 6, 4)), tmp_path / "trace.json.gz")
    head = head_of(made)
    held = {event.get("cat") for event in json.loads(gzip.decompress(made.read_bytes()))["traceEvents"]}
    assert set(head.categories) == held & PINS.keys()
    assert (
        list(head.pinned()) == [PINS[category][0] for category in PINS if category in held] and len(head.pinned()) == 5
    )
    # AND the UI opens on a step that all ranks have, with its instants in the trace
    begin, end = head.typical or (0, 0)
    events = json.loads(gzip.decompress(made.read_bytes()))["traceEvents"]
    steps = [(one["ts"] * 1000, (one["ts"] + one["dur"]) * 1000) for one in events if one.get("cat") == "step"]
    assert min(ts for ts, _ in steps if ts >= begin) == pytest.approx(begin)
    assert any(stop == pytest.approx(end) for _, stop in steps)
    shown = {name: int(value) for name, value in head.shown().items()}
    assert 0 <= shown["visStart"] <= begin < end < shown["visEnd"]
    # AND of nothing, nothing
    nothing = head_of(write_trace(Result("1.7", "", 0, None), tmp_path / "nothing.json.gz"))
    assert nothing.shown() == {} and nothing.pinned() == {} and named("AddDebugSliceTrack", nothing) == []


@pytest.mark.parametrize(
    ("categories", "headline", "asked"),
    [
        (["bucket.exec", "compute", "step"], "exposed communication", "exposed_by_bucket"),
        (["bucket.exec", "compute", "step"], "", "exposed_by_bucket"),
        (["bucket.exec", "compute", "step"], "late rank", "late_ranks"),
        (["bucket.exec", "compute", "step"], "copy", "largest_gaps"),
        (["compute"], "exposed communication", "largest_gaps"),
        (["step"], "data", "slowest_steps"),
    ],
)
def test_the_first_query_explains_the_headline(categories: list[str], headline: str, asked: str) -> None:
    head = Head(categories, headline)
    assert named("RunQueryAndShowTab", head)[-1] == [f"select * from {asked}"]
    assert head.first_query() in queries()


@pytest.mark.parametrize("text", ['{"traceEvents":[]}', '{"otherData":[]}', '{"otherData":{"categories":3}}', "", "{"])
def test_a_trace_that_says_nothing_of_itself_may_hold_everything(tmp_path: Path, text: str) -> None:
    plain, packed, broken = tmp_path / "a.json", tmp_path / "b.json.gz", tmp_path / "c.json.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    broken.write_bytes(gzip.compress(text.encode())[:-9])
    assert [head_of(path) for path in (plain, packed, broken)] == [WHOLE] * 3
