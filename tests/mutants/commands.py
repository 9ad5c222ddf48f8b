"""Everything that reads a run, as a user would have it read, in this process."""

from __future__ import annotations

import io
import json
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from ddptrace.analysis.result import Result
from ddptrace.cli import main
from ddptrace.errors import DdptraceError

FOLLOWED_S, AGAIN_S = 1.0, 10.0
"""So long a run is followed that does not end by itself; and until it is asked again that did not hear."""
MOST_DRAWN: Final = ((80, 24), (40, 12), (200, 60))


@dataclass(frozen=True, slots=True)
class Said:
    """What a command gave. `is_text`: stdout is for people, else JSON. `error`: what escaped from it."""

    code: int
    stdout: bytes
    stderr: bytes
    is_text: bool = True
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """`run`: the mutant; `before`: a run that nobody has touched; `out`: a folder that a command may write to."""

    run: Path
    before: Path
    out: Path


Command = Callable[[Place], Said]


def cli(*arguments: object, is_text: bool = True) -> Said:
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    error = done.exception if not isinstance(done.exception, SystemExit) else None
    return Said(done.exit_code, done.stdout_bytes, done.stderr_bytes, is_text and "--json" not in arguments, error)


def called(function: Callable[[], str]) -> Said:
    """What a command calls that a test cannot run whole: a window, a browser."""
    try:
        return Said(0, function().encode(errors="surrogatepass"), b"")
    except (DdptraceError, MemoryError) as error:
        return Said(1, b"", f"Error: {str(error) or 'there is not enough memory'}\n".encode(errors="replace"))
    except BaseException as error:
        return Said(1, b"", b"", error=error)


def analyze(place: Place) -> Said:
    return cli("analyze", place.run)


def analyze_json(place: Place) -> Said:
    return cli("analyze", place.run, "--json", "-o", place.out / "analyzed")


def traffic(place: Place) -> Said:
    return cli("traffic", place.run)


def traffic_json(place: Place) -> Said:
    return cli("traffic", place.run, "--json")


def tables_csv(place: Place) -> Said:
    return cli("tables", place.run, "-o", place.out / "tables")


def tables_jsonl(place: Place) -> Said:
    return cli("tables", place.run, "--format", "jsonl", "-o", place.out / "tables")


def diagnose(place: Place) -> Said:
    return cli("diagnose", place.run)


def diagnose_json(place: Place) -> Said:
    return cli("diagnose", place.run, "--json")


def whatif(place: Place) -> Said:
    return cli("whatif", place.run, "--scale")


def whatif_json(place: Place) -> Said:
    return cli("whatif", place.run, "--caps", "1,25", "--json")


def advise(place: Place) -> Said:
    return cli("advise", place.run)


def advise_json(place: Place) -> Said:
    return cli("advise", place.run, "--json")


def diff(place: Place) -> Said:
    return cli("diff", place.before, place.run, "-o", place.out / "diff")


def diff_json(place: Place) -> Said:
    return cli("diff", place.run, place.before, "--json")


def hta(place: Place) -> Said:
    return cli("hta", place.run)


def hta_json(place: Place) -> Said:
    return cli("hta", place.run, "--json")


def watch(place: Place) -> Said:
    return cli("watch", place.run, "--once")


def watch_screen(place: Place) -> Said:
    """What the whole screen would show, in windows of several sizes."""
    return called(lambda: "\n".join(_screens(place.run)))


def _screens(run: Path) -> Iterator[str]:
    from rich.console import Console

    from ddptrace.cli.watch import Watcher
    from ddptrace.live.watched import Watched
    from ddptrace.render.watch.screen import screen

    watcher = Watcher(Watched(run), str(run))
    watcher.look(whole=True)
    for width, height in MOST_DRAWN:
        console = Console(
            file=io.StringIO(), width=width, height=height, highlight=False, markup=False, emoji=False,
            force_terminal=False,
        )  # fmt: skip
        console.print(screen(watcher.view(every_s=1.0, keys=True), width, height))
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
        assert drawn.count("\n") <= height, f"{drawn.count(chr(10))} lines on a screen of {height}"
        yield drawn


def export(place: Place) -> Said:
    return cli("export", place.run, "--otlp-json", place.out / "spans.json")


def export_followed(place: Place) -> Said:
    """Ended as with Ctrl-C where the run does not end."""
    with _interrupted_after(FOLLOWED_S):
        return cli("export", place.run, "--follow", "--otlp-json", place.out / "followed.json")


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def shown(place: Place) -> Said:
    """The page that a Prometheus server fetches, and the figures up to what a browser is given."""
    return called(lambda: _shown(place.run))


def _shown(run: Path) -> str:
    from ddptrace.analyzer import analyze as analyze_run
    from ddptrace.figures import every

    result = analyze_run(run)
    _scrape(result, run)
    for figure in every(result).values():
        json.loads(figure.to_json())
    return ""


def _scrape(result: Result, run: Path) -> None:
    from ddptrace.telemetry.delivery.exports import scraped, totals_of

    with scraped(totals_of(result, run), ("127.0.0.1", 0)) as server:
        assert server is not None
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            page: str = answer.read().decode()
    from prometheus_client.parser import text_string_to_metric_families

    families = list(text_string_to_metric_families(page))
    assert all("forged" not in family.name for family in families)


def view(place: Place) -> Said:
    """Served, and fetched as the browser does."""
    return called(lambda: _viewed(place.run))


def _viewed(run: Path) -> str:
    from ddptrace.cli.view import trace_of
    from ddptrace.view import Server, online_site, serving

    trace, _ = trace_of(run)
    site = online_site(trace)
    server = Server(site, 0)
    with serving(server), urllib.request.urlopen(f"http://127.0.0.1:{server.port}{site.trace}", timeout=10) as answer:
        assert answer.read() == trace.read_bytes()
    return ""


COMMANDS: Final[tuple[tuple[Command, ...], ...]] = (
    (analyze, analyze_json), (view,), (traffic, traffic_json), (diagnose, diagnose_json), (whatif, whatif_json),
    (advise, advise_json), (diff, diff_json), (hta, hta_json), (watch, watch_screen), (export, export_followed),
    (tables_csv, tables_jsonl), (shown,),
)  # fmt: skip
"""Each in the forms that it has, of which a mutant meets one."""
CODES: Final = {
    diagnose: {0, 1, 3, 4}, diagnose_json: {0, 1, 3, 4}, export: {0, 1, 5}, export_followed: {0, 1, 5},
}  # fmt: skip
"""What the commands' help tells, of the others 0 and 1."""
