"""How a run directory is spoiled. Each way changes it in place and says what it did."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ddptrace.schema import Kind
from tests.mutants.bases import kineto_json
from tests.mutants.hostile import EVERY
from tests.mutants.segments import SegmentFile

Way = Callable[[Path, random.Random], str]
ELSEWHERE: Final = "elsewhere"
"""A folder beside the run that nobody may write to; links lead there."""
NUMBERS: Final = (
    0, -1, 1, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**64, 10**30, 10**400, 1e308, -1e308, 5e-324, 0.5,
    float("nan"), float("inf"), -float("inf"), True,
)  # fmt: skip
MOST_NBYTES: Final = 16 << 20
FIELDS: Final = (0, 1, -1, 2, 7, 255, 65535, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63)

EVENT_FIELDS: Final = ("kind", "flags", "thread", "name", "begin", "end", "a", "b", "c", "d", "e", "f", "g", "guard")
RECORD_JSON: Final = ("{", "[")
NAMES: Final = (
    "rank-00002", "rank-²", "rank-", "rank-00000000001", "rank--1", "rank-99999999999999999999", "rank-٣",
    "rank-pending-x", "rank-pending-\x1b[31m", "attempt-1", "attempt-²", "attempt-9999999999999999999", "attempt-",
    "attempt-0",
    "records-00000.bin", "records-99999.bin", "records-².bin", "records-x.bin", "kineto-9.json.gz", "manifest.json",
    "analysis", "\x1b]0;owned\x07", "a\nError: forged", "\udcff\udc9b31m", "\u202etxt.json", "x" * 255, "rank-1.json",
    "<img src=x onerror=alert(1)>.json.gz", "trace.pt.trace.json", "-o", "--json",
)  # fmt: skip


# Files ---------------------------------------------------------------------------------------------------------------


def files(run: Path) -> list[Path]:
    """Regular ones, but for those that were blown up."""
    found = (path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if path.stat().st_size < MOST_NBYTES)


def entries(run: Path) -> list[Path]:
    return sorted(run.rglob("*"))


def _one_file(run: Path, chance: random.Random) -> Path:
    return chance.choice(files(run))


def _told(what: str, path: Path, run: Path) -> str:
    return f"{what} {path.relative_to(run)}"


def flipped(run: Path, chance: random.Random) -> str:
    path = _one_file(run, chance)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 8, 64, 1000))):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)
    return _told("bytes changed in", path, run)


def truncated(run: Path, chance: random.Random) -> str:
    path = _one_file(run, chance)
    os.truncate(path, chance.choice((0, chance.randrange(path.stat().st_size + 1))))
    return _told("truncated", path, run)


def lengthened(run: Path, chance: random.Random) -> str:
    path = _one_file(run, chance)
    data = path.read_bytes()
    more = chance.choice((b"\0" * 4096, b"\xff" * 64, data, data[: len(data) // 2], b"}", os.fsencode("x") * 70_000))
    path.write_bytes(data + more)
    return _told("lengthened", path, run)


def blown_up(run: Path, chance: random.Random) -> str:
    """A hole costs no disk, and memory if it is read. Of a trace it is read; nothing else is ever that large."""
    path = _one_file(run, chance)
    os.truncate(path, 6 << 20 if path.name.endswith((".json.gz", "rank-1.json")) else 3 << 30)
    return _told("blown up", path, run)


def removed(run: Path, chance: random.Random) -> str:
    path = chance.choice(entries(run))
    _away(path)
    return _told("removed", path, run)


def swapped(run: Path, chance: random.Random) -> str:
    """Two files or folders, of two ranks where there are, exchange their places."""
    one, other = chance.sample(entries(run), 2)
    if one.is_relative_to(other) or other.is_relative_to(one):
        return "nothing"
    aside = run / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"{_told('swapped', one, run)} and {other.relative_to(run)}"


def copied(run: Path, chance: random.Random) -> str:
    """Under a name that means something, or that harms who prints it."""
    path = chance.choice(entries(run))
    target = chance.choice((run, path.parent)) / chance.choice(NAMES)
    if os.path.lexists(target) or target.is_relative_to(path):
        return "nothing"
    if path.is_dir() and not path.is_symlink():  # a way before this one may have put a link to `/` there
        shutil.copytree(path, target, symlinks=True)
    else:
        shutil.copy(path, target, follow_symlinks=False)
    return f"{_told('copied', path, run)} to {target.relative_to(run)!r}"


def renamed(run: Path, chance: random.Random) -> str:
    path = chance.choice(entries(run))
    target = path.with_name(chance.choice(NAMES))
    if os.path.lexists(target):
        return "nothing"
    path.rename(target)
    return f"{_told('renamed', path, run)} to {target.name!r}"


def replaced(run: Path, chance: random.Random) -> str:
    """A file or a folder is something else now."""
    path = chance.choice(entries(run))
    _away(path)
    what = chance.choice(KINDS)
    what(path, run)
    return f"{_told('replaced', path, run)} by {what.__name__}"


def planted(run: Path, chance: random.Random) -> str:
    """What a reader would write, or look for, is there already, and leads elsewhere."""
    name = chance.choice((
        "analysis", "analysis/report.html", "analysis/trace.json.gz", "analysis/analysis.json", "analysis/cache",
        "analysis/figures", "advised", "rank-00000/kineto-0.json.gz",
        "rank-00001/records-00001.bin", "rank-00002", "attempt-1", "attempt-1/rank-00000", "manifest.json.new",
    ))  # fmt: skip
    path, what = run / name, chance.choice(KINDS)
    if path.parent.is_symlink() or not path.parent.is_dir():
        _away(path.parent)
        path.parent.mkdir(parents=True)
    _away(path)
    what(path, run)
    return f"{_told('planted', path, run)} as {what.__name__}"


def _away(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


# What a file can be --------------------------------------------------------------------------------------------------


def an_empty_folder(path: Path, run: Path) -> None:
    path.mkdir()


def a_full_folder(path: Path, run: Path) -> None:
    path.mkdir()
    (path / "inside.json").write_text("{}")


def an_empty_file(path: Path, run: Path) -> None:
    path.touch()


def a_text(path: Path, run: Path) -> None:
    path.write_text("\x1b[31m<script>\n")


def a_fifo(path: Path, run: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path, run: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket has little room
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name[:100])
    finally:
        os.chdir(here)


def a_link_to_a_file(path: Path, run: Path) -> None:
    path.symlink_to(run.parent / ELSEWHERE / "precious")


def a_link_to_a_folder(path: Path, run: Path) -> None:
    path.symlink_to(run.parent / ELSEWHERE)


def a_link_to_the_run(path: Path, run: Path) -> None:
    path.symlink_to(run)


def a_link_to_the_root(path: Path, run: Path) -> None:
    path.symlink_to("/")


def a_link_to_itself(path: Path, run: Path) -> None:
    path.symlink_to(path.name)


def a_link_to_nothing(path: Path, run: Path) -> None:
    path.symlink_to(run.parent / ELSEWHERE / "not there")


def a_link_to_zeros(path: Path, run: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_a_full_disk(path: Path, run: Path) -> None:
    path.symlink_to("/dev/full")


def a_link_to_memory(path: Path, run: Path) -> None:
    path.symlink_to("/proc/self/mem")


def a_link_to_stdin(path: Path, run: Path) -> None:
    path.symlink_to("/proc/self/fd/0")


def a_link_to_a_terminal(path: Path, run: Path) -> None:
    path.symlink_to("/dev/ptmx")


KINDS: Final = (
    an_empty_folder, a_full_folder, an_empty_file, a_text, a_fifo, a_socket, a_link_to_a_file, a_link_to_a_folder,
    a_link_to_the_run, a_link_to_the_root, a_link_to_itself, a_link_to_nothing, a_link_to_zeros, a_link_to_a_full_disk,
    a_link_to_memory, a_link_to_stdin, a_link_to_a_terminal,
)  # fmt: skip


# Records -------------------------------------------------------------------------------------------------------------


def _segments(run: Path) -> list[Path]:
    return [path for path in files(run) if path.name.startswith("records-")]


def _edited(run: Path, chance: random.Random, edit: Callable[[SegmentFile, random.Random], str]) -> str:
    """One rank's file with one edit or a few, sealed as if nobody had touched it."""
    segments = _segments(run)
    if not segments:
        return flipped(run, chance)
    path = chance.choice(segments)
    file = SegmentFile.read(path)
    said = [edit(file, chance) for _ in range(chance.choice((1, 1, 1, 3, 20)))]
    file.write(path)
    return f"{'; '.join(said[:4])} in {path.relative_to(run)}"


def field_changed(run: Path, chance: random.Random) -> str:
    return _edited(run, chance, _change_field)


def _change_field(file: SegmentFile, chance: random.Random) -> str:
    at, field = chance.choice(file.events()), chance.choice(EVENT_FIELDS)
    value = chance.choice(FIELDS) if field != "kind" else chance.randrange(40)
    before = file.slots[at][0]
    file.put_field(at, field, value)
    return f"{_kind(before)}.{field} = {value}"


def _kind(number: int) -> str:
    return Kind(number).name if number in set(Kind) else str(number)


def slots_moved(run: Path, chance: random.Random) -> str:
    return _edited(run, chance, _move_slots)


def _move_slots(file: SegmentFile, chance: random.Random) -> str:
    at, to, many = (chance.randrange(len(file.slots)) for _ in range(3))
    how = chance.choice(("moved", "doubled", "dropped"))
    taken = file.slots[at : at + many]
    rest = file.slots if how == "doubled" else file.slots[:at] + file.slots[at + many :]
    file.slots = rest[:to] + (taken if how != "dropped" else []) + rest[to:] or file.slots
    return f"{len(taken)} slots {how}"


def text_changed(run: Path, chance: random.Random) -> str:
    return _edited(run, chance, _change_text)


def _change_text(file: SegmentFile, chance: random.Random) -> str:
    """A name becomes hostile; of JSON one value does."""
    texts = file.texts()
    if not texts:
        return "nothing"
    number = chance.choice(sorted(texts))
    text = texts[number]
    try:
        told, new = _changed_json(json.loads(text), chance) if text.startswith(RECORD_JSON) else _hostile(chance)
    except ValueError:
        told, new = _hostile(chance)
    file.put_text(number, new[: 1 << 16].encode(errors="replace"))
    return f"text {text[:30]!r}: {told}"


def _hostile(chance: random.Random) -> tuple[str, str]:
    name = chance.choice(sorted(EVERY))
    return name, EVERY[name]


# JSON ----------------------------------------------------------------------------------------------------------------


def _json_files(run: Path) -> list[Path]:
    return [path for path in files(run) if path.name.endswith((".json", ".json.gz"))]


def json_changed(run: Path, chance: random.Random) -> str:
    """A value of a manifest, a rank's words or a trace is another."""
    found = _json_files(run)
    if not found:
        return flipped(run, chance)
    path = chance.choice(found)
    try:
        content = json.loads(kineto_json(path))
    except (ValueError, OSError, EOFError, zlib.error):
        return flipped(run, chance)
    said = []
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        told, text = _changed_json(content, chance)
        said.append(told)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            break
    path.write_bytes(text.encode(errors="surrogatepass"))
    return f"{'; '.join(said[:4])} in {path.relative_to(run)}"


def _changed_json(content: Any, chance: random.Random) -> tuple[str, str]:
    """What was done, and the text of the changed content."""
    how = chance.choice(JSON_WAYS)
    told, text = how(content, chance)
    return f"{how.__name__.strip('_')} {told}", text


def _nodes(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values in it, of long lists only some."""
    if path:
        yield path
    if isinstance(content, dict):
        for key, value in list(content.items())[:200]:
            yield from _nodes(value, (*path, key))
    elif isinstance(content, list):
        step = max(1, len(content) // 40)
        for at in range(0, len(content), step):
            yield from _nodes(content[at], (*path, at))


def _with(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = content.copy()
    copy[path[0]] = _with(content[path[0]], path[1:], value)
    return copy


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def _some_node(content: Any, chance: random.Random) -> tuple[Any, ...]:
    found = list(_nodes(content))
    return chance.choice(found) if found else ()


def _of_wrong_type(content: Any, chance: random.Random) -> tuple[str, str]:
    path = _some_node(content, chance)
    value = chance.choice((None, [], {}, "", "x", 0, -1, 3.5, True, [None], {"a": {}}, [[1, 2]], "[0, 1]", 10**25))
    return f"{path} = {value!r}", json.dumps(_with(content, path, value))


def _of_wrong_size(content: Any, chance: random.Random) -> tuple[str, str]:
    path, value = _some_node(content, chance), chance.choice(NUMBERS)
    told = f"{path} = {'10**400' if value == 10**400 else value}"
    return told, json.dumps(_with(content, path, value))


def _hostile_text(content: Any, chance: random.Random) -> tuple[str, str]:
    """Of a text, a key, or all texts at once."""
    name, text = _hostile(chance)
    if chance.random() < 0.2 and len(text) < 1000:
        return f"every text = {name}", json.dumps(_all_texts(content, text))
    texts = [path for path in _nodes(content) if isinstance(_at(content, path), str)]
    path = chance.choice(texts) if texts else _some_node(content, chance)
    return f"{path} = {name}", json.dumps(_with(content, path, text), ensure_ascii=chance.random() < 0.7)


def _all_texts(content: Any, text: str) -> Any:
    if isinstance(content, dict):
        return {key: _all_texts(value, text) for key, value in content.items()}
    if isinstance(content, list):
        return [_all_texts(value, text) for value in content]
    return text if isinstance(content, str) else content


def _hostile_key(content: Any, chance: random.Random) -> tuple[str, str]:
    paths = [path for path in _nodes(content) if isinstance(path[-1], str)]
    if not paths:
        return _hostile_text(content, chance)
    path, (name, text) = chance.choice(paths), _hostile(chance)
    owner = dict(_at(content, path[:-1]))
    owner[text] = owner.pop(path[-1])
    return f"key {path} = {name}", json.dumps(_with(content, path[:-1], owner))


def _without(content: Any, chance: random.Random) -> tuple[str, str]:
    path = _some_node(content, chance)
    if not path:
        return "nothing", json.dumps(content)
    owner = _at(content, path[:-1]).copy()
    del owner[path[-1]]
    return str(path), json.dumps(_with(content, path[:-1], owner))


def _nested(content: Any, chance: random.Random) -> tuple[str, str]:
    path, depth = _some_node(content, chance), chance.choice((50, 990, 5_000, 200_000))
    mark = "a mark that is nowhere else"
    opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
    inner = opening * depth + "1" + closing * depth
    return f"{path}, {depth} deep", json.dumps(_with(content, path, mark)).replace(json.dumps(mark), inner, 1)


def _twice(content: Any, chance: random.Random) -> tuple[str, str]:
    """Every key of one object is there twice, the second time with another value."""
    if not isinstance(content, dict) or not content:
        return _of_wrong_type(content, chance)
    again = {key: chance.choice((None, 0, "x", [], {})) for key in content}
    first, second = json.dumps(content), json.dumps(again)
    both = (first[:-1], second[1:]) if chance.random() < 0.5 else (second[:-1], first[1:])
    return "all keys", ", ".join(both)


def _garbled(content: Any, chance: random.Random) -> tuple[str, str]:
    """Signs that no JSON has, or has to be escaped."""
    text = json.dumps(content)
    at = chance.randrange(len(text) + 1)
    token = chance.choice(("\x00", "\x1b[31m", "\udcff", "\ud800", "NaN", "'", "\\", ",,", "\ufeff", "//", "\u202e"))
    return f"{token!r} at {at}", text[:at] + token + text[at:]


JSON_WAYS: Final = (
    _of_wrong_type, _of_wrong_type, _of_wrong_size, _hostile_text, _hostile_text, _hostile_key, _without, _nested,
    _twice, _garbled,
)  # fmt: skip


# All together --------------------------------------------------------------------------------------------------------

WAYS: Final[tuple[Way, ...]] = (
    flipped, truncated, lengthened, blown_up, removed, swapped, copied, renamed, replaced, replaced, planted,
    field_changed, field_changed, slots_moved, text_changed, text_changed, json_changed, json_changed, json_changed,
)  # fmt: skip


def spoil(run: Path, chance: random.Random) -> str:
    """In one way, or in a few at once."""
    return "; ".join(_spoilt(run, chance) for _ in range(chance.choice((1, 1, 1, 2, 4))) if files(run))


def _spoilt(run: Path, chance: random.Random) -> str:
    """What is spoilt already may not bear another way."""
    way = chance.choice(WAYS)
    try:
        return way(run, chance)
    except (OSError, ValueError, IndexError, RecursionError, zlib.error) as error:
        return f"{way.__name__} failed ({type(error).__name__})"
