"""What the UI does once the trace is loaded: pin tracks, define the queries, run the first one.

Uses only commands that Perfetto documents as stable and allows in an address:
https://perfetto.dev/docs/visualization/commands-automation-reference
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Final
from urllib.parse import quote, urlencode

FIRST_ASKED: Final = "exposed_by_bucket"
SLICES: Final = (
    "select slice.id, slice.ts, slice.dur, slice.name, slice.track_id, process.name as rank from slice"
    " join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"
)
FIRST_RANK: Final = "process.pid = (select min(pid) from process where name glob '*rank *')"
PINNED: Final = {"critical path": "slice.category = 'path'"} | {
    f"{kind}, first rank": f"slice.category = '{category}' and {FIRST_RANK}"
    for kind, category in (("steps", "step"), ("compute", "compute"), ("buckets", "bucket.exec"))
}
"""Tracks to pin, by query: pinning by name would also pin the heading of each thread."""

Command = dict[str, str | list[str]]


def route(trace_url: str) -> str:
    """Return the part of the UI's address that names the trace and the start-up commands."""
    commands = json.dumps(startup_commands(), ensure_ascii=False, separators=(",", ":"))
    return "#!/?" + urlencode({"url": trace_url, "startupCommands": commands}, quote_via=quote)


def startup_commands() -> list[Command]:
    """Return the start-up commands. The last tab that opens stays in front."""
    every = queries()
    return [
        _command("CollapseTracksByRegex", ".*"),
        *(_command("AddDebugSliceTrack", f"{SLICES} where {which}", title) for title, which in PINNED.items()),
        *(_command("RunQuery", f"create or replace perfetto view {name} as\n{sql}") for name, sql in every.items()),
        _command("RunQueryAndShowTab", contents(every)),
        _command("RunQueryAndShowTab", f"select * from {FIRST_ASKED}"),
    ]


def queries() -> dict[str, str]:
    """Return the queries, by the name of their file, which is also the name of their view."""
    files = resources.files(__package__).joinpath("queries").iterdir()
    found = {file.name.removesuffix(".sql"): file.read_text("utf-8") for file in files if file.name.endswith(".sql")}
    return {name: found[name].rstrip().removesuffix(";") for name in sorted(found)}


def contents(every: dict[str, str]) -> str:
    """Return a query whose rows list the queries and what they answer."""
    said = [(_text(f"select * from {name}"), _text(_answer(sql))) for name, sql in every.items()]
    return "\nunion all ".join(f"select {query} as query, {answer} as answers" for query, answer in said)


def _answer(sql: str) -> str:
    """Return the first sentence of the comment at the start of a query."""
    comment = " ".join(re.findall(r"^-- (.*)$", sql, re.MULTILINE))
    return re.split(r"(?<=\.) ", comment, maxsplit=1)[0]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _command(name: str, *arguments: str) -> Command:
    return {"id": f"dev.perfetto.{name}", "args": list(arguments)}
