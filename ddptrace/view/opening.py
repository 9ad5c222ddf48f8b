"""What the UI does once the trace is loaded: it pins tracks, defines the queries and runs the first one.

The head of the trace tells which tracks it has and what the run's headline is: they decide what is pinned and which
query runs. The UI gets only commands that Perfetto documents as stable and allows in an address:
https://perfetto.dev/docs/visualization/commands-automation-reference
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

SLICES: Final = (
    "select slice.id, slice.ts, slice.dur, slice.name, slice.track_id, process.name as rank from slice"
    " join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"
)
OF_FIRST_RANK: Final = " and process.pid = (select min(pid) from process where name glob '*rank *')"
PINS: Final = {
    "path": ("critical path", ""),
    "step": ("steps, first rank", OF_FIRST_RANK),
    "compute": ("compute, first rank", OF_FIRST_RANK),
    "idle.gap": ("idle gaps, first rank", OF_FIRST_RANK),
    "bucket.exec": ("buckets, first rank", OF_FIRST_RANK),
    "collective": ("other collectives, first rank", OF_FIRST_RANK),
}
"""By category: title of the pinned track, and which of the slices it shows. Pinning tracks by name would also pin the
heading of each thread."""
EXPOSED, GAPS, LATE, STEPS = "exposed_by_bucket", "largest_gaps", "late_ranks", "slowest_steps"
COMMUNICATION: Final = "exposed communication"
LATENESS: Final = {"late rank", "waiting for ranks"}
BEGIN_NBYTES: Final = 1 << 20
"""Of the trace's text, in which its head lies."""

Command = dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a trace. `categories`: those of its slices; `headline`: cause of the largest saving, "" if none;
    `typical`: when its typical step begins and ends, ns of the trace, None if it has none."""

    categories: Collection[str]
    headline: str
    typical: tuple[int, int] | None = None

    def pinned(self) -> dict[str, str]:
        """Return the query of each track to pin, by title."""
        shown = {category: pin for category, pin in PINS.items() if category in self.categories}
        return {title: f"slice.category = '{category}'{which}" for category, (title, which) in shown.items()}

    def shown(self) -> dict[str, str]:
        """Return the part of the trace that the UI shows first: a typical step with some room around it."""
        if self.typical is None:
            return {}
        begin, end = self.typical
        room = (end - begin) // 10
        return {"visStart": str(max(begin - room, 0)), "visEnd": str(end + room)}

    def first_query(self) -> str:
        """Return the name of the query that explains the headline, among those that have an answer."""
        if self.headline in LATENESS:
            return LATE
        if "bucket.exec" in self.categories and self.headline in ("", COMMUNICATION):
            return EXPOSED
        return GAPS if "compute" in self.categories else STEPS


def head_of(trace: Path) -> Head:
    """Read the head of a trace. Without one, assume that the trace has every category."""
    whole = Head(PINS, "")
    try:
        with trace.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(trace) if packed else trace.open("rb") as file:
            text = file.read(BEGIN_NBYTES).decode("utf-8", "replace")
        found = json.JSONDecoder().raw_decode(text, text.index('"otherData":') + len('"otherData":'))[0]
        categories, headline = set(found["categories"]), str(found["headline"])
        begin, end = map(int, found.get("typical_step") or (0, 0))
        return Head(categories, headline, (begin, end) if begin < end else None)
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError):
        return whole


def route(trace_url: str, trace: Path) -> str:
    """Return the part of the UI's address that names the trace and the start-up commands."""
    head = head_of(trace)
    commands = json.dumps(startup_commands(head), ensure_ascii=False, separators=(",", ":"))
    return "#!/?" + urlencode({"url": trace_url, **head.shown(), "startupCommands": commands}, quote_via=quote)


def startup_commands(head: Head) -> list[Command]:
    """Return the start-up commands. The last tab that opens stays in front."""
    every = queries()
    return [
        _command("CollapseTracksByRegex", ".*"),
        *(_command("AddDebugSliceTrack", f"{SLICES} where {which}", title) for title, which in head.pinned().items()),
        *(_command("RunQuery", f"create or replace perfetto view {name} as\n{sql}") for name, sql in every.items()),
        _command("RunQueryAndShowTab", contents(every)),
        _command("RunQueryAndShowTab", f"select * from {head.first_query()}"),
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
