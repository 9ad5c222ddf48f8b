"""`ddptrace analyze RUN`: print a summary; write tables, trace and report beside the run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ddptrace.cli.say import as_json_bytes, say, say_json_piece, show
from ddptrace.errors import printable

if TYPE_CHECKING:
    from ddptrace.analysis.result import Result
    from ddptrace.analysis.tables.table import Table
    from ddptrace.analysis.whatif.answer import Forecast

FILES: Final = {"report": "report.html", "trace": "trace.json.gz", "tables": "analysis.json"}
ROWS_PER_PIECE: Final = 5_000


@click.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON and nothing else.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to.  [default: RUN/analysis]")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of processes.  [default: one per processor]")
@click.option(
    "--engine",
    type=click.Choice(["local", "dask"]),
    default="local",
    show_default=True,
    help="Read the ranks on this machine or on a Dask cluster.",
)
@click.option("--scheduler", metavar="ADDRESS", help="Address of the Dask scheduler, such as tcp://host:8786.")
@click.option(
    "--comm-kernel",
    "comm_kernels",
    multiple=True,
    metavar="REGEX[=OP]",
    help="Also count kernels whose names match REGEX as communication, of operation OP. Repeatable.",
)
@click.option("--no-report", is_flag=True, help="Do not write report.html.")
@click.option("--no-trace", is_flag=True, help="Do not write trace.json.gz, which takes longest of a large run.")
@click.option("--no-align", is_flag=True, help="Do not align the clocks of the ranks.")
def analyze(
    run: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    jobs: int | None,
    engine: str,
    scheduler: str | None,
    comm_kernels: tuple[str, ...],
    no_report: bool,
    no_trace: bool,
    no_align: bool,
) -> None:
    """Show where the step time of a run went.

    Prints a summary, then writes a report, a trace and tables to RUN/analysis/.

    RUN is a run directory of ddptrace.trace, or any files and folders of torch.profiler traces.
    """
    if (engine == "dask") != (scheduler is not None):
        raise click.UsageError("--engine dask and --scheduler ADDRESS must be given together")
    folder = output or folder_for(run)
    left_out = {name for name, is_left_out in (("report", no_report), ("trace", no_trace)) if is_left_out}
    with progress() as tell:
        result, forecast = _read(
            run,
            with_forecast=not (as_json and no_report),  # which nothing else shows
            jobs=jobs,
            scheduler=scheduler,
            cache=folder / "cache",
            comm_kernels=comm_kernels,
            progress=tell,
            align=not no_align,
        )
    if not as_json:
        _say_summary(result, forecast)
    written = write_all(result, folder, forecast, left_out)
    if as_json:
        for piece in encoded(result):
            say_json_piece(piece)
        say("")
    else:
        for name, path in written.items():
            say(f"{name:<7} {printable(path)}")
    if output is not None and len(written) + len(left_out) < len(FILES):
        sys.exit(1)  # a file that the user asked for is missing


def _read(run: Sequence[str], *, with_forecast: bool, **how: Any) -> tuple[Result, Forecast | None]:
    if not with_forecast:
        from ddptrace.analyzer import analyze as read

        return read(run, **how), None
    from ddptrace.predictor import analyze_with_forecast

    return analyze_with_forecast(run, **how)


def _say_summary(result: Result, forecast: Forecast | None) -> None:
    """Print what a reader needs first, before the files are written, which takes long for a large run."""
    from ddptrace.render.terminal import summary_text
    from ddptrace.render.whatif.answers import in_short

    show(f"{summary_text(result)}\n")
    said = in_short(forecast) if forecast is not None else ()
    if said and not result.suspects:  # a late rank matters more than any bucket size
        say("\n".join((*said, "")))


def folder_for(run: Sequence[str]) -> Path:
    """Return the folder `analysis` beside the given paths, or inside a single given folder.

    Raises DdptraceError if that folder is a link, through which somebody else's files could be overwritten.
    """
    from ddptrace.schema import ANALYSIS

    if len(run) == 1 and os.path.isdir(run[0]):  # noqa: PTH112 (false for a path that may not be read)
        return unlinked(Path(run[0], ANALYSIS))
    return unlinked(Path(os.path.commonpath([_beside(Path(path).absolute()) for path in run])) / ANALYSIS)


def unlinked(folder: Path) -> Path:
    """Return `folder`, which the user has not named. Raises DdptraceError if it is a link."""
    from ddptrace.errors import DdptraceError

    if folder.is_symlink():
        raise DdptraceError(
            f"{folder} is a link to {folder.readlink()}, and ddptrace does not write through links: remove it, or name"
            " the folder with --output"
        )
    return folder


def _beside(path: Path) -> Path:
    """Return the folder of a file; of a glob, the last folder before its first wildcard."""
    return next(folder for folder in path.parents if os.path.isdir(folder))  # noqa: PTH112


@contextlib.contextmanager
def progress(label: str = "Reading ranks") -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, count: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, show_pos=True) as bar:

        def tell(done: int, count: int) -> None:
            bar.length = count
            bar.update(done - bar.pos)

        yield tell


def encoded(result: Result) -> Iterator[bytes]:
    """Encode a result as JSON: enums as words, tuples as lists, unmeasured values as null.

    Yields pieces, since the whole text may be larger than the tables.
    """
    from ddptrace.analysis.tables.table import Table

    before = b"{"
    for key, value in result.json_items():
        yield before + as_json_bytes(key) + b":"
        yield from _rows_encoded(value) if isinstance(value, Table) else (as_json_bytes(value),)
        before = b","
    yield b"}"


def _rows_encoded(table: Table[Any]) -> Iterator[bytes]:
    before = b"["
    for start in range(0, len(table), ROWS_PER_PIECE):
        yield before + as_json_bytes(list(table[start : start + ROWS_PER_PIECE]))[1:-1]
        before = b","
    yield b"]" if len(table) else b"[]"


def write_all(
    result: Result, folder: Path, forecast: Forecast | None = None, left_out: Collection[str] = ()
) -> dict[str, Path]:
    """Write report, trace and tables, except those in `left_out`. A file that cannot be written is no error; a line on
    stderr names it."""
    from ddptrace.analyzer import uncollected

    written, why = {}, ""
    writers: dict[str, Callable[[Result, Path], object]] = {
        "report": partial(_write_report, forecast=forecast),
        "trace": _write_trace,
        "tables": write_tables,
    }
    wanted = {name: file for name, file in FILES.items() if name not in left_out}
    with progress("Writing files") as tell:
        for done, (name, file) in enumerate(wanted.items()):
            tell(done, len(wanted))
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with uncollected():
                    writers[name](result, folder / file)
                written[name] = folder / file
            except OSError as error:
                why = error.strerror or str(error)
        tell(len(wanted), len(wanted))
    missing = ", ".join(file for name, file in wanted.items() if name not in written)
    if missing:
        where = f"Cannot write to {printable(folder)} ({printable(why)})"
        say(f"{where}: {missing} is missing. Choose a writable folder with --output.", err=True)
    return written


def _write_report(result: Result, path: Path, *, forecast: Forecast | None) -> None:
    from ddptrace.render.report import NO_FORECAST, write_report

    write_report(result, path, forecast=forecast or NO_FORECAST)


def _write_trace(result: Result, path: Path) -> None:
    from ddptrace.render.trace.chrome import write_trace

    write_trace(result, path)


def write_tables(result: Result, path: Path) -> None:
    from ddptrace.render.whole_file import whole_file

    with whole_file(path) as file:
        file.writelines(encoded(result))
