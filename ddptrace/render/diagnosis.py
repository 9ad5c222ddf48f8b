"""A diagnosis as the terminal shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final

from ddptrace.analysis.diagnosis.places import place_words, seconds
from ddptrace.analysis.diagnosis.tables import Diagnosis, RankPlace, Verdict
from ddptrace.errors import printable
from ddptrace.units import named

NAMES_WIDTH: Final = 8
STATUS: Final = {
    "runs": "alive",
    "stopped": "stopped by a signal",
    "held": "its process is there, its interpreter does nothing",
    "died": "died",
    "failed": "failed",
    "ended": "ended",
    "unknown": "not known whether it runs",
}
OVER: Final = ("ended", "failed", "died")
BLAMED: Final = {"mismatch": "differs", "device": "halted", "stuck": "absent", "message": "absent", "slow": "awaited"}
"""What the ranks are called that a verdict of this kind is about; elsewhere `lost`."""


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The verdicts, what explains the most first, and the last of the ranks that none of them is about."""
    places = {place.rank: place for place in diagnosis.ranks}
    parts, told = [], set[int]()
    for verdict in diagnosis.verdicts:
        parts.append(_lines(_verdict_lines(verdict, places, told)))
        told |= {*verdict.waiting, *verdict.absent}
    rest = [place for place in diagnosis.ranks if place.rank not in told]
    parts += [_lines(_rank_lines(rest, "The other ranks" if told else "The last of every rank"))] if rest else []
    return "\n\n".join(parts) + "\n"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, lines))


def _verdict_lines(verdict: Verdict, places: dict[int, RankPlace], told: Set[int]) -> Iterator[str]:
    """`told`: ranks whose place is told above. Who waits for whom is told of them again, and not that they are lost."""
    blamed, known = BLAMED.get(verdict.kind, "lost"), [rank for rank in verdict.absent if rank in places]
    waiting = [places[rank] for rank in verdict.waiting if rank in places]
    yield verdict.sentence
    yield from _named_lines("waits", [place for place in waiting if place.status not in OVER])
    yield from _named_lines("waited", [place for place in waiting if place.status in OVER])
    yield from _named_lines(blamed, [places[rank] for rank in known if blamed != "lost" or rank not in told])
    missing = [rank for rank in verdict.absent if rank not in places]
    if missing:
        words = dict(zip(verdict.absent, verdict.where, strict=True))[missing[0]]
        yield _line(blamed, f"{named('rank', missing)}: {words}")
    if verdict.likely:
        yield _line("likely", verdict.likely)


def _rank_lines(places: Sequence[RankPlace], heading: str) -> Iterator[str]:
    yield heading
    for words, ranks in _alike(places).items():
        yield f"  {named('rank', ranks)}: {words}"


def _named_lines(name: str, places: Sequence[RankPlace]) -> Iterator[str]:
    for words, ranks in _alike(places).items():
        yield _line(name, f"{named('rank', ranks)}: {words}")


def _alike(places: Sequence[RankPlace]) -> dict[str, list[int]]:
    """Ranks by what is said of them; for how long, by the last of them to come there."""
    alike: dict[tuple[str, str], list[RankPlace]] = {}
    for place in places:
        alike.setdefault((place_words(place), place.status), []).append(place)
    return {
        _words(min(one, key=lambda place: place.since_ns or 0)): [place.rank for place in one] for one in alike.values()
    }


def _words(place: RankPlace) -> str:
    """Where it is, for how long, and what became of it. What it failed with is told in a verdict of its own."""
    if place.since_ns is None:
        return place_words(place)
    state = STATUS[place.status] if place.status in OVER else f"for {seconds(place.since_ns)}; {STATUS[place.status]}"
    return f"{place_words(place)} ({state})".lstrip()


def _line(name: str, words: str) -> str:
    return f"  {name:<{NAMES_WIDTH}} {words}"
