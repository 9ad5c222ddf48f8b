"""All that is served, by path. No path is ever joined to a folder: what is not in the table is not there."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.view.startup import route

PERFETTO_SITE: Final = "https://ui.perfetto.dev"
OCTETS: Final = "application/octet-stream"
CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".wasm": "application/wasm",  # the browser compiles it while it comes, under this type only
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Served:
    path: Path
    content_type: str


@dataclass(frozen=True, slots=True)
class Site:
    """`entry`: the path that a user opens; all paths begin with it, and it cannot be guessed, since whoever works on
    this machine can ask. `ui`: where the UI is, a path of ours or an address. `origin`: the only foreign one that may
    read the trace; None where none may."""

    entry: str
    trace: str
    ui: str
    origin: str | None
    files: Mapping[str, Served]

    def leads_to(self, port: int) -> str:
        """The address of the UI with the trace in it, for a browser that reached us at this port: at the far end of a
        tunnel it may be another than ours."""
        here = f"http://127.0.0.1:{port}"
        return (self.ui if self.origin else here + self.ui) + route(here + self.trace)


def offline_site(trace: Path, name: str, ui: Path) -> Site:
    """The trace and the UI in the folder `ui`. `name`: what the UI calls the trace."""
    entry = _secret()
    return Site(entry, entry + _plain(name), f"{entry}ui/", None, {
        **{f"{entry}ui/{path}": served for path, served in _ui_files(ui).items()},
        entry + _plain(name): Served(trace, OCTETS),
    })  # fmt: skip


def online_site(trace: Path) -> Site:
    """The trace alone, for the UI on Perfetto's own site. That tells Google Analytics which address it opens, so that
    no name of a run is in it."""
    entry = _secret()
    path = f"{entry}trace"
    return Site(entry, path, f"{PERFETTO_SITE}/", PERFETTO_SITE, {path: Served(trace, OCTETS)})


def _secret() -> str:
    return f"/{secrets.token_urlsafe(16)}/"


def _plain(name: str) -> str:
    """Without any sign that an address would have to escape: the UI shows the name as it stands there."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".") or "trace"


def _ui_files(folder: Path) -> dict[str, Served]:
    """By path below the UI's own; the index also by the path of the folder."""
    files = {
        path.relative_to(folder).as_posix(): Served(path, CONTENT_TYPES[path.suffix])
        for path in folder.rglob("*")
        if path.suffix in CONTENT_TYPES and path.is_file()
    }
    return {"": files["index.html"], **files}
