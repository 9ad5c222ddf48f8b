"""One mutant: made from a base by its seed, read by commands in a child with a limit of time and memory, and judged."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import gzip
import hashlib
import importlib
import json
import os
import random
import resource
import select
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from ddptrace.render.report import plotly_js
from tests.mutants.commands import CODES, COMMANDS, Command, Place, Said, export, export_followed
from tests.mutants.hostile import FORGED, obeyed
from tests.mutants.ways import ELSEWHERE, spoil

MOST_WORK_S, PATIENCE_S = 20, 90
"""Of one command: processor time, and time on a machine that does much else."""
MOST_MORE_NBYTES: Final = 1 << 30
"""A command may take so much more memory than the process had that it was forked from."""
MOST_SAID: Final = 2_000_000
"""Characters on a terminal."""
Work = Callable[[Command, Place], Any]
"""Of one command, in the child: something that JSON can hold."""
Written = tuple[str, int, int]
MOST_OF_A_SENTENCE: Final = 3_000
TALKATIVE: Final = (export, export_followed)
ANSWERED, REFUSED, FAILED = "answered", "refused in one sentence", "defect"
WARNED: Final = ("Traceback", "Warning:")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why`: of a defect, what is wrong, one line that is the same for the same cause, and more behind it."""

    command: str
    outcome: str
    why: str = ""
    more: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tried:
    """One mutant and what became of it."""

    seed: int
    base: str
    how: str
    verdicts: tuple[Verdict, ...]


def tried(seed: int, bases: Mapping[str, Path], most: int = len(COMMANDS)) -> Tried:
    """`bases`: as `bases.record` gives them; `most`: so many of the commands read the mutant, those of a seed always
    the same. What is written where nothing may be written is a defect of `all`."""
    chance = random.Random(seed)
    base = chance.choice(sorted(bases))
    chosen = sorted(chance.sample(range(len(COMMANDS)), most))
    commands = [chance.choice(COMMANDS[at]) for at in chosen]
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        place = _place(Path(folder), bases, base)
        how = spoil(place.run, chance)
        before = _looks(Path(folder), place)
        verdicts = _in_child(place, commands)
        after = _looks(Path(folder), place)
        if before != after:
            changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
            verdicts.append(Verdict("all", FAILED, "something was written or removed", ", ".join(changed[:5])))
    return Tried(seed, base, how, tuple(verdicts))


def import_all(bases: Mapping[str, Path]) -> None:
    """What commands import when they are run, so that no child has to. They are run in a child: what they leave behind,
    such as threads, would be in the way of every fork."""
    for base in ("profiled", "traces"):
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
            every = [form for forms in COMMANDS for form in forms]
            imported, trace = _forked(_place(Path(folder), bases, base), every, _imported)
            assert len(imported) == len(every), trace
        for name in imported[-1]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()


def whole(bases: Mapping[str, Path], base: str) -> list[Verdict]:
    """Of every form of every command, on a run that nobody has spoilt."""
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        return _in_child(_place(Path(folder), bases, base), [form for forms in COMMANDS for form in forms])


def _imported(command: Command, place: Place) -> list[str]:
    command(place)
    return sorted(sys.modules)


def _place(folder: Path, bases: Mapping[str, Path], base: str) -> Place:
    """A copy of the base with a neighbour that links may lead to."""
    place = Place(folder / "run", bases["ddp" if base in ("profiled", "analyzed") else "profiled"], folder / "out")
    shutil.copytree(bases[base], place.run)
    place.out.mkdir()
    (folder / ELSEWHERE).mkdir()
    (folder / ELSEWHERE / "precious").write_text("{}")
    return place


def _looks(folder: Path, place: Place) -> dict[str, tuple[object, ...]]:
    """Of all that no command may touch: what it is and, of a file, its content."""
    return {os.path.relpath(path, folder): _look(path) for path in _untouchable(folder, place)}


def _untouchable(folder: Path, place: Place) -> Iterator[str]:
    derived = (str(place.run / "analysis"), str(place.out))
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.path in derived and not entry.is_symlink():
                    continue
                yield entry.path
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _look(path: str) -> tuple[object, ...]:
    told = os.lstat(path)
    kind = told.st_mode
    if stat.S_ISLNK(kind):
        return kind, str(Path(path).readlink())
    if not stat.S_ISREG(kind):
        return kind, told.st_ino
    is_small = told.st_size < 1 << 24
    content = hashlib.blake2b(Path(path).read_bytes()).hexdigest() if is_small else told.st_mtime_ns
    return kind, told.st_ino, told.st_size, content


# In the child --------------------------------------------------------------------------------------------------------


def _in_child(place: Place, commands: Sequence[Command]) -> list[Verdict]:
    """One child for all commands, and another for those that are left where one ended it."""
    found: list[Verdict] = []
    while len(found) < len(commands):
        left = commands[len(found) :]
        said, trace = _forked(place, left, _judged)
        found += [Verdict(*one) for one in said]
        if len(said) < len(left):
            found.append(Verdict(left[len(said)].__name__, FAILED, _end_of(trace), trace[-3000:]))
    return found


def _end_of(trace: str) -> str:
    """As the watchdog or the system ended it."""
    lines = [line.strip() for line in trace.splitlines()]
    place = next((line for line in lines if "/ddptrace/" in line), "")
    how = "hangs" if any("Timeout" in line for line in lines) else "ends the process, or takes too long"
    return f"{how}, {_short(place)}"


def _short(place: str) -> str:
    return place[place.find("/ddptrace/") + 1 :]


def _forked(place: Place, commands: Sequence[Command], work: Work) -> tuple[list[Any], str]:
    """What the child told of each command before it ended, and what its watchdog said where it did not end well."""
    told, tell = os.pipe()
    with tempfile.TemporaryFile() as trace:
        child = os.fork()
        if not child:
            os.close(told)
            _become(place, commands, work, tell, trace.fileno())
        os.close(tell)
        with os.fdopen(told, "rb") as answers:
            data = _all_of(answers.fileno(), child, PATIENCE_S * (len(commands) + 1))
        os.waitpid(child, 0)
        trace.seek(0)
        words = trace.read().decode(errors="replace")
    return [json.loads(line) for line in data.decode().splitlines()], words


def _all_of(answers: int, child: int, seconds: float) -> bytes:
    until, data = time.monotonic() + seconds, b""
    while select.select([answers], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(answers, 1 << 16)
        if not piece:
            return data
        data += piece
    os.kill(child, signal.SIGKILL)
    return data


def _become(place: Place, commands: Sequence[Command], work: Work, tell: int, trace: int) -> None:
    """The child: never comes back."""
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background has it ignored
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(trace, 2)
        _limit_memory()
        os.environ |= {"HOME": str(place.out), "TMPDIR": str(place.out), "COLUMNS": "96"}
        os.chdir(place.out)
        tempfile.tempdir = str(place.out)
        for command in commands:
            _limit_time()
            answer = work(command, place)
            faulthandler.cancel_dump_traceback_later()
            os.write(tell, json.dumps(answer).encode() + b"\n")
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        sys.__stderr__.flush()  # type: ignore[union-attr]
        os._exit(1)
    os._exit(0)


def _limit_time() -> None:
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=sys.__stderr__)
    faulthandler.register(signal.SIGXCPU, file=sys.__stderr__, chain=True)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MOST_WORK_S, hard))


def _limit_memory() -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_MORE_NBYTES,) * 2)


def _judged(command: Command, place: Place) -> tuple[str, str, str, str, float]:
    """The fields of a verdict."""
    began = time.monotonic()
    found = judgement(command, place)
    return command.__name__, *found, time.monotonic() - began


def judgement(command: Command, place: Place) -> tuple[str, str, str]:
    """Outcome, why and more."""
    before = set(_written(place))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for hidden in (ResourceWarning, DeprecationWarning, ImportWarning):  # as by Python itself
            warnings.simplefilter("ignore", hidden)
        said = command(place)
    if said.error is not None:
        return FAILED, _raised(said.error), "".join(traceback.format_exception(said.error))[-4000:]
    wrong = next(_wrong(command, said, sorted(set(_written(place)) - before)), None)
    if wrong is not None:
        return FAILED, *wrong
    return REFUSED if said.code == 1 else ANSWERED, "", said.stderr.decode(errors="replace")[:500]


def _raised(error: BaseException) -> str:
    """What, and the last line of ours that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/ddptrace/" in frame.filename]
    where = f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__} from {where}"


# Judgement -----------------------------------------------------------------------------------------------------------


def _wrong(command: Command, said: Said, written: list[Written]) -> Iterator[tuple[str, str]]:
    """Why and more. `written`: what is there and was not before."""
    stdout, stderr = (data.decode(errors="surrogateescape") for data in (said.stdout, said.stderr))
    if said.code not in CODES.get(command, {0, 1}):
        yield f"exit code {said.code}", stderr[-500:]
    if said.code == 1 and not _is_a_sentence(stderr, command in TALKATIVE):
        yield "exit code 1 without exactly one sentence", stderr[-2000:]
    for word in WARNED:
        if word in stderr:
            yield f"{word} on stderr", stderr[-2000:]
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        found = obeyed(text)
        if found is not None:
            yield f"{name} holds what a terminal obeys", found
        if any(line.lstrip(" ").startswith(FORGED) for line in text.split("\n")):
            yield f"{name} holds a forged line", text[:500]
        if said.is_text and len(text) > MOST_SAID:
            yield f"{name} is {len(text)} characters long", text[:200]
    if said.code != 1 and not said.is_text:
        with _noting() as wrong:
            json.loads(stdout)
        yield from (("stdout is no JSON", more) for more in wrong)
    yield from _wrong_files(written)


def _is_a_sentence(stderr: str, is_talkative: bool) -> bool:
    """Of a length that somebody reads. `is_talkative`: it may have told before what it does."""
    last = stderr.rstrip("\n").rpartition("\n")[2] if is_talkative else stderr.rstrip("\n")
    return last.startswith("Error: ") and "\n" not in last and 15 < len(last) < MOST_OF_A_SENTENCE


@contextlib.contextmanager
def _noting() -> Iterator[list[str]]:
    wrong: list[str] = []
    try:
        yield wrong
    except (ValueError, RecursionError, EOFError, OSError) as error:
        wrong.append(f"{type(error).__name__}: {error}"[:500])


def _written(place: Place) -> Iterator[Written]:
    """What there is where a command may write: path, inode and when it was written."""
    for folder in (place.out, place.run / "analysis"):
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in folder.rglob("*"):
            if not path.is_symlink() and path.is_file():
                told = path.stat()
                yield str(path), told.st_ino, told.st_mtime_ns


def _wrong_files(written: list[Written]) -> Iterator[tuple[str, str]]:
    for path in (Path(name) for name, _, _ in written):
        with _noting() as wrong:
            CHECKS.get(path.name, lambda path: None)(path)
        yield from ((f"{path.name} is not as it should be", more) for more in wrong)


def _strict(text: str | bytes) -> Any:
    """As other languages read it: without NaN."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _check_trace(path: Path) -> None:
    content = _strict(gzip.decompress(path.read_bytes()).decode())
    if not isinstance(content["traceEvents"], list):
        raise ValueError("it has no events")


def _check_json(path: Path) -> None:
    _strict(path.read_text("utf-8"))


def _check_lines(path: Path) -> None:
    for line in path.read_bytes().splitlines():
        _strict(line.decode())


class _Elements(HTMLParser):
    """Elements that a browser would make."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img" or any(name.startswith("on") or value == "owned" for name, value in attrs):
            self.found.append(f"{tag} {attrs}"[:200])


def _check_page(path: Path) -> None:
    elements = _Elements()
    elements.feed(path.read_text("utf-8").replace(plotly_js(), ""))
    if elements.found:
        raise ValueError(f"a name has become an element: {elements.found[:3]}")


CHECKS: Final = {
    "trace.json.gz": _check_trace, "analysis.json": _check_json, "diff.json": _check_json, "spans.json": _check_lines,
    "followed.json": _check_lines, "report.html": _check_page, "diff.html": _check_page,
}  # fmt: skip
