"""`ddptrace view RUN_OR_TRACE`: the merged trace in the Perfetto UI."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ddptrace.cli.endings import UNTIL_ASKED, ending_in_order
from ddptrace.cli.say import say

if TYPE_CHECKING:
    from ddptrace.view import Server, Site

OFFLINE_UI: Final = "pip install 'ddptrace[view]'"


@click.command()
@click.argument("run", metavar="RUN_OR_TRACE", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: 9001, or another where that is taken.")
@click.option("--online", is_flag=True, help="In the UI of ui.perfetto.dev, which reads from port 9001 only.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def view(run: Path, port: int, online: bool, no_browser: bool) -> None:
    """Open a trace in the Perfetto UI: useful tracks pinned on top, useful queries ready.

    RUN_OR_TRACE is what `ddptrace analyze` takes, which is analyzed where its trace is missing or old, or a trace file.
    Without --online the UI is the one that the extra `view` brings, and nothing leaves this machine; where that extra
    is not installed, it is ui.perfetto.dev. Only this machine reaches the server, which Ctrl-C ends.
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
    say(f"ui.perfetto.dev reads the trace from here; the browser asks whether it may.{instead}", err=True)
    return online_site(trace)


def trace_of(run: Path) -> tuple[Path, str]:
    """The trace's file, made where it is missing or old, and a name for it.

    Raises DdptraceError where there is none and none can be written.
    """
    from ddptrace.cli.analyze import FILES, folder_for
    from ddptrace.view import is_current

    if run.is_file():
        run.open("rb").close()  # what refuses to be read is told here, and not by the browser
        return run, run.name
    folder = run
    if not all(_is_made(run / file) for file in FILES.values()):  # as `ddptrace analyze --output` leaves it
        folder = folder_for([str(run)])
        if not (run.is_dir() and is_current(folder / FILES["trace"], run)):  # beside what is not there lie others' too
            _analyze(run, folder)
    return folder / FILES["trace"], f"{run.resolve().name}.json.gz"


def _is_made(file: Path) -> bool:
    """Whether we may have made it: a link could lead to what is nobody's to see."""
    return file.is_file() and not file.is_symlink()


def _analyze(run: Path, folder: Path) -> None:
    """What `ddptrace analyze RUN` writes."""
    from ddptrace.cli.analyze import progress, write_all
    from ddptrace.errors import DdptraceError, printable
    from ddptrace.predictor import analyze_with_forecast

    with progress() as tell:
        result, forecast = analyze_with_forecast(run, cache=folder / "cache", progress=tell)
    if "trace" not in write_all(result, folder, forecast):
        raise DdptraceError(
            f"there is no trace of {printable(run)} to show: `ddptrace analyze RUN --output FOLDER` writes one where "
            "you may, and `ddptrace view FOLDER/trace.json.gz` shows it"
        )


def bound(site: Site, port: int) -> Server:
    """The server, on its port. Raises DdptraceError where there is none for it."""
    from ddptrace.errors import DdptraceError
    from ddptrace.view import PERFETTO_PORT, Server

    if site.origin and port not in (0, PERFETTO_PORT):
        raise DdptraceError(f"ui.perfetto.dev reads from port {PERFETTO_PORT} only; leave --port out")
    for one in [port] if port else [PERFETTO_PORT] if site.origin else [PERFETTO_PORT, 0]:
        try:
            return Server(site, one)
        except OSError as error:
            why = f"port {one} cannot be had ({error.strerror})"
    if site.origin:
        raise DdptraceError(f"{why}, and ui.perfetto.dev reads from no other; end what uses it, or {OFFLINE_UI}")
    raise DdptraceError(f"{why}; give another --port, or none, and a free one is found")


def _tell(server: Server, no_browser: bool) -> None:
    """stdout has the address and nothing else."""
    from ddptrace.view import open_browser, tunnel

    say(server.address)
    if no_browser or not open_browser(server.address):
        say(f"Where the browser is on another machine, type this there first: {tunnel(server.port)}", err=True)
    say("Ctrl-C ends it.", err=True)
