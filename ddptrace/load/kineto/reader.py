"""One Kineto file (torch.profiler's own format) as columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto import cache as kineto_cache
from ddptrace.load.kineto.columns import Columns
from ddptrace.load.kineto.events import KinetoEvents
from ddptrace.load.kineto.source import NotATrace, Source
from ddptrace.load.kineto.stream import EventStream, OutermostKeys, base_in_ruins, base_ns, facts_of, told_by


def read_kineto(path: Path, cache: Path | None = None) -> KinetoEvents:
    """Read a file of JSON or a Perfetto trace, packed or not; what of it could not be read stands in `facts.damage`.

    `cache` is a folder, made where it is missing, in which the columns are kept for the next time. Raises
    RunDirectoryError where the file cannot be opened, is no Kineto trace, its packing is damaged, or reading it needs a
    package that is not installed.
    """
    try:
        return _read(Source(path)) if cache is None else _read_cached(path, cache)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read ({error.strerror or error}); is it a whole file?") from error
    except ImportError as error:
        raise RunDirectoryError(f"{path} {error}") from error
    except NotATrace as error:
        message = f"{path} is not a whole Kineto trace ({error}); record it again or leave it out"
        raise RunDirectoryError(message) from error


def _read_cached(path: Path, cache: Path) -> KinetoEvents:
    key = kineto_cache.key_of(path)
    known = kineto_cache.load(cache, path, key)
    if known is None:
        known = _read(Source(path))
        kineto_cache.store(cache, path, key, known)
    return known


def _read(source: Source) -> KinetoEvents:
    columns = Columns()
    stream = EventStream(columns.add, columns.restart, columns.scan)
    stream.read(source)
    told, base, lost = _surroundings(stream)
    events = columns.finish(base or 0, facts_of(told))
    unreadable = stream.unreadable + columns.unreadable
    damage = _sentence(stream, unreadable, lost or source.cut, base is not None)
    if damage and not stream.seen:
        raise NotATrace(damage)
    return replace(events, facts=replace(events.facts, damage=damage))


def _surroundings(stream: EventStream) -> tuple[OutermostKeys, int | None, bool]:
    """What stands around the events, what times count from, and whether some of it is lost."""
    around, is_list = stream.around.text, stream.around.text.lstrip()[:1] == b"["
    cut = bool(stream.stopped)
    told = told_by(around if is_list or not cut else around + b"}")
    if told is not None:
        return told, base_ns(told), cut or (told.base is not None and base_ns(told) is None)
    head = told_by(around[: stream.around.head_nbytes] + (b"" if is_list else b"}"))
    return head or OutermostKeys(), base_in_ruins(around), True


def _sentence(stream: EventStream, unreadable: int, lost: bool, has_base: bool) -> str | None:
    """What could not be read, as parts of one sentence; None where all could."""
    parts = []
    if stream.stopped:
        parts.append(f"{stream.stopped} after {stream.seen:,} events; the rest is lost")
    elif lost:
        parts.append("the text around its events is incomplete")
    if (stream.stopped or lost) and not has_base:
        parts.append("if baseTimeNanoseconds was lost with it, the times are too early")
    if stream.odd_gaps:
        parts.append("commas between its events are missing, or too many")
    if unreadable:
        parts.append(f"{unreadable:,} of its events could not be read and are left out")
    return "; ".join(parts) or None
