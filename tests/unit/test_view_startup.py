"""What `ddptrace view` has the Perfetto UI do."""

from __future__ import annotations

import json
import urllib.parse

from ddptrace.view.site import contents, queries, route, startup_commands


def named(command: str) -> list[object]:
    """Arguments of the commands of this name."""
    return [one["args"] for one in startup_commands() if one["id"] == f"dev.perfetto.{command}"]


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


def test_the_route_survives_the_way_the_ui_reads_it() -> None:
    """It takes a plus for a space, and then what every reader of queries takes."""
    told = route("http://127.0.0.1:9001/x+y/run.json.gz")
    assert told.startswith("#!/?") and "+" not in told and "#" not in told[1:]
    read = dict(urllib.parse.parse_qsl(told.removeprefix("#!/?"), strict_parsing=True))
    assert read["url"] == "http://127.0.0.1:9001/x+y/run.json.gz"
    assert json.loads(read["startupCommands"]) == startup_commands()
