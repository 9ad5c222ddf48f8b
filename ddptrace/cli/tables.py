"""`ddptrace tables RUN`: write each table of a run to one file."""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import click

from ddptrace.cli.say import as_json_bytes, say
from ddptrace.errors import printable

if TYPE_CHECKING:
    from ddptrace.analysis.tables.table import Table


@click.command()
@click.argument("run", nargs=-1, required=True)
@click.option(
    "--format",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    default="csv",
    show_default=True,
    help="Format of the files.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder to write to.  [default: RUN/analysis/tables]"
)
def tables(run: tuple[str, ...], format: str, output: Path | None) -> None:
    """Write all tables of a run as CSV, JSON lines or Parquet.

    RUN is a run directory of ddptrace.trace, or any files and folders of torch.profiler traces. Each table becomes one
    file, also a table without rows. In CSV, a list or a row within a row is JSON, and what was not measured is empty.
    Parquet needs pyarrow: pip install 'ddptrace[arrow]'.
    """
    from ddptrace.analysis.result import TABLES
    from ddptrace.analyzer import analyze
    from ddptrace.cli.analyze import folder_for, progress, unlinked
    from ddptrace.render.whole_file import whole_file

    folder = output or unlinked(folder_for(run) / "tables")
    with progress() as tell:
        result = analyze(run, progress=tell)
    folder.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        table = getattr(result, name)
        with whole_file(folder / f"{name}.{format}") as file:
            WRITERS[format](table, file)
        if len(table):
            say(f"{len(table):>9,} rows  {printable(folder / f'{name}.{format}')}")


def write_csv(table: Table[Any], file: IO[bytes]) -> None:
    """Write a line of names, then a line for each row."""
    text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(table.columns)
    writer.writerows([_cell(getattr(row, name)) for name in table.columns] for row in table)
    text.detach()


def _cell(value: Any) -> object:
    if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool | enum.Enum)):
        return value
    text = as_json_bytes(value).decode()
    return text.strip('"') if isinstance(value, enum.Enum) else text


def write_jsonl(table: Table[Any], file: IO[bytes]) -> None:
    """Write an object for each row."""
    file.writelines(as_json_bytes(row) + b"\n" for row in table)


def write_parquet(table: Table[Any], file: IO[bytes]) -> None:
    """Write a Parquet file. Raises DdptraceError without pyarrow."""
    found = table.to_arrow()
    from pyarrow import parquet

    parquet.write_table(found, file)


WRITERS: Final[dict[str, Callable[[Table[Any], IO[bytes]], None]]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}
