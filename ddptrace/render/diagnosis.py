"""A diagnosis as the terminal shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ddptrace.analysis.diagnosis_tables import Diagnosis, RankPlace, Verdict
from ddptrace.analysis.places import place_words, seconds
from ddptrace.analysis.wording import named
from ddptrace.errors import printable

NAMES_WIDTH: Final = 8
STATUS: Final = {
    "runs": "runs",
    "stopped": "stopped by a signal",
    "held": "its process is there, its interpreter does nothing",
    "died": "died",
    "failed": "failed",
    "ended": "ended",
    "unknown": "not known whether it runs",
}
BLAMED: Final = {"mismatch": "differs", "stuck": "absent", "message": "absent", "slow": "absent"}
"""What the ranks are called that a verdict of this kind is about; elsewhere `lost`."""


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The verdicts, what explains the most first, and the last of the ranks that none of them is about."""
    places = {place.rank: place for place in diagnosis.ranks}
    parts = [_lines(_verdict_lines(one, places)) for one in diagnosis.verdicts]
    told = {rank for one in diagnosis.verdicts for rank in (*one.waiting, *one.absent)}
    rest = [place for place in diagnosis.ranks if place.rank not in told]
    parts += [_lines(_rank_lines(rest, "The other ranks" if told else "The last of every rank"))] if rest else []
    return "\n\n".join(parts) + "\n"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(map(printable, lines))


def _verdict_lines(verdict: Verdict, places: dict[int, RankPlace]) -> Iterator[str]:
    blamed, known = BLAMED.get(verdict.kind, "lost"), [rank for rank in verdict.absent if rank in places]
    yield verdict.sentence
    yield from _named_lines("waits", [places[rank] for rank in verdict.waiting if rank in places])
    yield from _named_lines(blamed, [places[rank] for rank in known])
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
    """Ranks by what is said of them."""
    alike: dict[str, list[int]] = {}
    for place in places:
        alike.setdefault(_place(place), []).append(place.rank)
    return alike


def _place(place: RankPlace) -> str:
    """Where it is, for how long, and what became of it. What it failed with is told in a verdict of its own."""
    over = place.status in ("ended", "failed", "died")
    parts = (place_words(place), "" if over else f"for {seconds(place.since_ns)}")
    return f"{', '.join(filter(None, parts))} ({STATUS[place.status]})"


def _line(name: str, words: str) -> str:
    return f"  {name:<{NAMES_WIDTH}} {words}"
