"""What a Kineto file says of itself outside its events."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ddptrace.load.kineto.args import REFUSED, count, rank_list, text
from ddptrace.load.kineto.events import FAR_NS, FileFacts
from ddptrace.load.kineto.text import cleaned
from ddptrace.load.tables import MOST_RANKS

BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(-?\d{1,19})(?![\d.eE])')


class OutermostKeys(msgspec.Struct):
    """Keys of the outermost object. What they hold is judged where it is used."""

    events: Any = msgspec.field(default=None, name="traceEvents")
    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    host: Any = msgspec.field(default=None, name="host_name")


def told_by(around: bytes) -> OutermostKeys | None:
    """Read the text around a file's events, which has `[]` in their place; None where it cannot be read whole."""
    for attempt in (bytes, cleaned):
        try:
            told = msgspec.json.decode(attempt(around), type=OutermostKeys | list[Any])
        except REFUSED:
            continue
        return told if isinstance(told, OutermostKeys) else OutermostKeys(events=told)
    return None


def base_ns(told: OutermostKeys) -> int | None:
    """What the file's times count from; None where it does not say."""
    is_whole = isinstance(told.base, int) and not isinstance(told.base, bool) and -FAR_NS < told.base < FAR_NS
    return told.base if is_whole else None


def base_in_ruins(around: bytes) -> int | None:
    """The same where the text cannot be read whole."""
    found = BASE.findall(around)
    return base_ns(OutermostKeys(base=int(found[-1]))) if found else None


def facts_of(told: OutermostKeys, damage: str | None = None) -> FileFacts:
    """Keep of it what is of the right type."""
    info = told.distributed if isinstance(told.distributed, dict) else {}
    world_size = count(info.get("world_size"))
    first = told.devices[0] if isinstance(told.devices, list) and told.devices else None
    return FileFacts(
        rank=count(info.get("rank")),
        world_size=world_size,
        backend=text(info.get("backend")),
        device_name=text(first.get("name")) if isinstance(first, dict) else None,
        host=text(told.host),
        groups=_groups(info.get("pg_config"), world_size),
        damage=damage,
    )


def _groups(config: Any, world_size: int | None) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    found = [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []
    named = [(text(group.get("pg_name")), text(group.get("backend_config")) or "", group) for group in found]
    return tuple((name, backend, _ranks(group, world_size)) for name, backend, group in named if name is not None)


def _ranks(group: dict[str, Any], world_size: int | None) -> tuple[int, ...]:
    """Ranks of a group; empty where they are not told. torch writes an empty list for the group of all ranks."""
    given = group.get("ranks", group.get("Process Group Ranks"))
    size = count(group.get("pg_size", group.get("group_size")))
    if given in ([], "[]") and size is not None and size == world_size and size <= MOST_RANKS:
        return tuple(range(size))
    return rank_list(given) or ()


def what_it_is(around: bytes) -> str:
    """What a file without a list of events is, in words."""
    for attempt in (bytes, cleaned):
        try:
            keys = msgspec.json.decode(attempt(around), type=dict[str, msgspec.Raw])
        except REFUSED:
            continue
        if "traceEvents" in keys:
            return "JSON whose traceEvents is not a list of events"
        return "an execution trace (it has nodes)" if "nodes" in keys else "JSON without traceEvents"
    return "not JSON"
