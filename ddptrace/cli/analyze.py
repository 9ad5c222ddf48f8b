"""`ddptrace analyze RUN`: the summary on the terminal; tables, trace and report beside the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ddptrace.analysis import Result


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the tables as JSON, and nothing else.")
def analyze(run: Path, as_json: bool) -> None:
    """Say where the step time of RUN went, and write RUN/analysis/."""
    from ddptrace.analyzer import analyze as analyze_run

    result = analyze_run(run)
    written = write_all(result, run)
    if as_json:
        click.echo(encoded(result))
        return
    from ddptrace.render.terminal import summary_text

    click.echo(summary_text(result))
    for name, path in written.items():
        click.echo(f"{name:<7} {path}")


def encoded(result: Result) -> bytes:
    """The documented keys: enums as their words, tuples as lists, what was not measured as null."""
    import msgspec

    return msgspec.json.encode(result.to_json_dict())


def write_all(result: Result, run: Path) -> dict[str, Path]:
    """Write what is derived from a run; a run that cannot be written to is no error, and said on stderr."""
    from ddptrace.render.chrome import write_trace
    from ddptrace.render.report import write_report
    from ddptrace.render.whole_file import whole_file
    from ddptrace.schema import ANALYSIS

    folder = run / ANALYSIS
    tables, trace, report = folder / "analysis.json", folder / "trace.json.gz", folder / "report.html"
    try:
        folder.mkdir(exist_ok=True)
        with whole_file(tables) as file:
            file.write(encoded(result))
        write_trace(result, trace)
        write_report(result, report)
    except OSError as error:
        why = error.strerror or error
        click.echo(f"No files were written to {folder} ({why}): copy the run to where you may write.", err=True)
        return {}
    return {"report": report, "trace": trace, "tables": tables}
