"""Options of `python -m ddptrace.run`: from flags, else the environment, else `[tool.ddptrace]` in pyproject.toml."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import stat
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from ddptrace.errors import DdptraceError, printable
from ddptrace.trace_options import LEAST_FACTOR, LEAST_NBYTES, UNLABELLED, Keep, Labels, labels_of, when_slow

USAGE: Final = (
    "python -m ddptrace.run [--out DIR] [--overwrite] [--profile SCHEDULE] "
    "[--keep WHAT] [--name NAME] [--tags TAGS] [--notes TEXT] "
    "(script.py | -m module) [args ...]"
)
EPILOG: Final = """\
Under a launcher: torchrun --nproc-per-node 2 -m ddptrace.run [options] script.py args

WHAT limits what each rank keeps on disk; the oldest records are deleted first. size=64MiB, the default, is the most
bytes, steps=1000 keeps the last 1,000 steps, every=10 records one step in ten. Combine them with commas, as in
size=64MB,every=10. Records are deleted by whole files of 4MiB, or of a sixteenth of size= if that is less, so a short
run keeps more than steps= says. Units of size= are kB, MB, GB, KiB, MiB and GiB; the minimum is 4MB.

An option without a flag comes from the environment, as in DDPTRACE_OUT, DDPTRACE_OVERWRITE (1 or 0) or
DDPTRACE_PROFILE, else from an entry of the option's name, as in out, overwrite or profile, in the table
[tool.ddptrace] of the nearest pyproject.toml that has this table, in the current directory or above."""

PROFILER_OPTIONS: Final = ("record_shapes", "with_stack", "with_modules", "profile_memory", "with_flops")
"""Options of torch.profiler.profile, under torch's names."""

ROOT_UID: Final = 0
SWITCHES: Final = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of a profiler window, as torch.profiler.schedule counts them; `repeat` 0 repeats it without end.

    `options`: those of PROFILER_OPTIONS that are on.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """`out` is absolute: the program may change its directory."""

    out: Path
    overwrite: bool = False
    profile: Schedule | when_slow | None = None
    keep: Keep | None = None
    labels: Labels = UNLABELLED


@dataclass(frozen=True, slots=True)
class Command:
    """`program`: a script's path, or with `is_module` a module's name."""

    program: str
    is_module: bool
    args: tuple[str, ...]
    options: Options


def read_command(argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> Command:
    """Read flags, environment and pyproject.toml. Raises DdptraceError for a mistake in any of the three."""
    said = command_line().parse_args(argv)
    flags = {f"--{name}": getattr(said, name) for name in NAMES}
    values = _from_file(cwd)
    values |= _taken({name: environ.get(f"DDPTRACE_{name.upper()}") or None for name in NAMES}, cwd, "DDPTRACE_{}")
    values |= _taken({name: flags[f"--{name}"] for name in NAMES}, cwd, "--{}")
    options = Options(
        values.get("out", cwd / "run"),
        values.get("overwrite", False),
        values.get("profile"),
        values.get("keep"),
        labels_of(values.get("name"), values.get("tags"), values.get("notes")),
    )
    return Command(said.program, said.is_module, tuple(said.args), options)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DdptraceError(f"{message}; usage: {USAGE}")


def command_line() -> argparse.ArgumentParser:
    """Make the parser of the arguments of `python -m ddptrace.run`."""
    parser = _Parser(
        prog="python -m ddptrace.run",
        usage=USAGE,
        epilog=EPILOG,
        allow_abbrev=False,
        description="Record an unchanged training program. Then `ddptrace analyze DIR` shows where its step time went.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", metavar="DIR", help="run directory  [default: run]")
    parser.add_argument("--overwrite", action="store_true", default=None, help="replace a run that DIR already holds")
    parser.add_argument(
        "--profile",
        metavar="SCHEDULE",
        help="record torch.profiler windows: on a schedule of steps, WAIT,WARMUP,ACTIVE[,REPEAT][,OPTION...], such as"
        " 5,1,3 or 5,1,3,with_stack; REPEAT 0 repeats it without end"
        f"  [default: 1]; OPTION is one of {', '.join(PROFILER_OPTIONS)}. Or only when steps have become slower:"
        " when-slow, or when-slow:factor=1.3,at-most=3,active=3",
    )
    parser.add_argument("--keep", metavar="WHAT", help="limit what each rank keeps on disk, as in size=64MB,every=10")
    parser.add_argument("--name", help="what to call the run, in the report and in telemetry")
    parser.add_argument("--tags", help="words that tell the run from others, separated by commas")
    parser.add_argument("--notes", metavar="TEXT", help="text for the report's header")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, not a script")
    parser.add_argument("program", help="script or module to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the program, passed on unchanged")
    return parser


def _out(said: object, base: Path, where: str) -> Path:
    """Relative to `base`."""
    if not isinstance(said, str) or not said or "\0" in said:
        raise DdptraceError(f'{where} is {said!r}; give a directory, such as "run"')
    return base / said


def _overwrite(said: object, base: Path, where: str) -> bool:
    known = said if isinstance(said, bool) else SWITCHES.get(str(said).lower())
    if known is None:
        raise DdptraceError(f"{where} is {said!r}; give true or false")
    return known


def _profile(said: object, base: Path, where: str) -> Schedule | when_slow:
    if isinstance(said, str) and said.partition(":")[0].strip() == WHEN_SLOW:
        return _when_slow(said, where)
    parts = [part.strip() for part in said.split(",")] if isinstance(said, str) else []
    numbers = [int(part) for part in itertools.takewhile(str.isdecimal, parts)]
    options = parts[len(numbers) :]
    if len(numbers) in (3, 4) and numbers[2] > 0 and set(options) <= set(PROFILER_OPTIONS):
        wait, warmup, active, repeat = (*numbers, 1)[:4]
        return Schedule(wait, warmup, active, repeat, tuple(options))
    raise DdptraceError(
        f'{where} is {said!r}; give WAIT,WARMUP,ACTIVE[,REPEAT][,OPTION...] in steps, such as "5,1,3", with at least'
        f' one active step; OPTION is one of {", ".join(PROFILER_OPTIONS)}; or give "{WHEN_SLOW}"'
    )


def _when_slow(said: str, where: str) -> when_slow:
    """As in when-slow:factor=1.3,at-most=3."""
    _, colon, rest = said.partition(":")
    parts = [part.strip().partition("=") for part in rest.split(",")] if colon else []
    words = {name.replace("-", "_"): SLOW_WORDS[name](value) for name, _, value in parts if name in SLOW_WORDS}
    if len(words) == len(parts) and None not in words.values():
        with contextlib.suppress(DdptraceError):
            return when_slow(**words)  # type: ignore[arg-type]
    raise DdptraceError(
        f'{where} is {said!r}; give "{WHEN_SLOW}", or with a factor of at least {LEAST_FACTOR} and whole numbers above'
        f' 0, as in "{WHEN_SLOW}:factor=1.3,at-most=3,active=3"'
    )


def _factor(said: str) -> float | None:
    try:
        return float(said)
    except ValueError:
        return None


def _keep(said: object, base: Path, where: str) -> Keep:
    parts = [part.strip().partition("=") for part in said.split(",")] if isinstance(said, str) else []
    words = {name: WORDS[name](value) for name, _, value in parts if name in WORDS}
    if len(words) != len(parts) or not words or None in words.values():
        raise DdptraceError(
            f'{where} is {said!r}; give size=, steps= or every=, or several of them, as in "size=64MB,every=10", with a'
            " size in kB, MB, GB, KiB, MiB or GiB"
        )
    try:
        return Keep(**{"nbytes" if name == "size" else name: value for name, value in words.items()})  # type: ignore[arg-type]
    except DdptraceError:
        nbytes = words.get("size")
        small = nbytes is not None and nbytes < LEAST_NBYTES
        expected = f"a size of at least {LEAST_NBYTES // 10**6}MB" if small else "whole numbers above 0"
        raise DdptraceError(f"{where} is {said!r}; give {expected}") from None


def _text(said: object, base: Path, where: str) -> str:
    if not isinstance(said, str):
        raise DdptraceError(f"{where} is {said!r}; give a text")
    return said


def _tags(said: object, base: Path, where: str) -> list[str]:
    """Separated by commas."""
    return [tag.strip() for tag in _text(said, base, where).split(",") if tag.strip()]


def _count(said: str) -> int | None:
    return int(said) if said.isdecimal() else None


def _nbytes(said: str) -> int | None:
    """As in 64MB or 1GiB."""
    unit = said.lstrip("0123456789")
    number, factor = said[: len(said) - len(unit)], UNITS.get(unit.lower())
    return int(number) * factor if number.isdecimal() and factor else None


UNITS: Final = {"": 1, "b": 1} | {
    unit: size**power
    for power, letter in enumerate("kmgt", start=1)
    for unit, size in ((f"{letter}b", 1000), (f"{letter}ib", 1024))
}
WORDS: Final = {"size": _nbytes, "steps": _count, "every": _count}
WHEN_SLOW: Final = "when-slow"
SLOW_WORDS: Final = {"factor": _factor, "at-most": _count, "active": _count}
NAMES: Final = {
    "out": _out,
    "overwrite": _overwrite,
    "profile": _profile,
    "keep": _keep,
    "name": _text,
    "tags": _tags,
    "notes": _text,
}


def _taken(said: Mapping[str, object], base: Path, where: str) -> dict[str, Any]:
    """Parse the values that are given. `where` names their source and has a placeholder for the option's name."""
    return {
        name: NAMES[name](value, base, where.format(name if "-" in where else name.upper()))
        for name, value in said.items()
        if value is not None
    }


def _from_file(cwd: Path) -> dict[str, Any]:
    """Read `[tool.ddptrace]` of the nearest pyproject.toml that has it; `out` there is relative to the file.

    A file that any user could have put there is ignored: its `overwrite` could remove a run of this user.
    """
    for folder in (cwd, *cwd.parents):
        file = folder / "pyproject.toml"
        if _may_be_a_strangers(file):
            _say_left_out(file)
            continue
        table = _table(file)
        if table is not None:
            unknown = ", ".join(sorted(table.keys() - NAMES.keys()))
            if unknown:
                raise DdptraceError(
                    f"[tool.ddptrace] in {file} has unknown options: {unknown}; known are {', '.join(NAMES)}"
                )
            return {name: NAMES[name](said, folder, f"{name} in {file}") for name, said in table.items()}
    return {}


def _say_left_out(file: Path) -> None:
    """Warn, if the file has a table for us."""
    with contextlib.suppress(Exception):  # no error in that file ends the program
        if _table(file) is not None:
            print(
                f"ddptrace.run: ignoring {printable(file)}, because every user of this machine can write it or its "
                "folder; give options by flag or DDPTRACE_ variables, or move it to a folder that only you can write",
                file=sys.stderr,
            )


def _may_be_a_strangers(file: Path) -> bool:
    """Whether every user of this machine can write the file, or could have put it or a link to it there.

    False if there is no file.
    """
    try:
        link, found, folder = file.lstat(), file.stat(), file.parent.stat()
    except OSError:
        return False
    is_ours = {link.st_uid, found.st_uid} <= {os.geteuid(), ROOT_UID}
    return bool(found.st_mode & stat.S_IWOTH or (folder.st_mode & stat.S_IWOTH and not is_ours))


def _table(file: Path) -> dict[str, Any] | None:
    """Read the file's table; None if there is no such file, no permission to read it, or no such table."""
    try:
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise DdptraceError(f"{file} is not valid TOML, which must be UTF-8 ({error.reason}); fix the file") from None
    try:
        tool = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise DdptraceError(f"{file} is not valid TOML ({error}); fix the file") from None
    table = tool.get("ddptrace") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise DdptraceError(f"ddptrace under [tool] in {file} is {table!r}; make it a table, [tool.ddptrace]")
    return table
