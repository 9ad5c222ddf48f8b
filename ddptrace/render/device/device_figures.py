"""Pictures of what devices did. As in figure.py: plain data for plotly.js, a bounded number of marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.analysis.device.digest import ScopeDigest, StreamDigest, device_parts, scopes, streams
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.device import Population, RankRow
from ddptrace.render.figure import Figure, axis, bars, layout, ms, plain
from ddptrace.render.words import PARTS, shortened
from ddptrace.units import duration, percent

RANKS_MAX: Final = 24
STREAMS_MAX: Final = 24
SCOPES_MAX: Final = 15
NAME_MAX: Final = 60
ENGINE: Final = "autograd::engine::evaluate_function: "
KINDS: Final = {"compute": "compute", "comm": "communication", "memory": "copies and fills"}


@dataclass(frozen=True, slots=True)
class Piece:
    """One mark: the bar it is in, its colour and what it is called, its length, and what is said when pointed at."""

    label: str
    colour: str
    name: str
    value: float
    words: str


def stacked(key: str, pieces: Sequence[Piece], title: str, caption: str, **x: Any) -> Figure | None:
    """Horizontal bars, one per label from top to bottom, made of the pieces that have it."""
    labels = list(dict.fromkeys(piece.label for piece in pieces))
    data = []
    for colour, name in dict.fromkeys((piece.colour, piece.name) for piece in pieces):
        own = [piece for piece in pieces if (piece.colour, piece.name) == (colour, name)]
        if any(piece.value for piece in own):
            columns = {"y": [labels.index(piece.label) for piece in own], "x": [piece.value for piece in own]}
            data.append(bars(name, colour, orientation="h", hovertext=[piece.words for piece in own], **columns))
    places, names = list(range(len(labels))), [plain(label) for label in labels]
    axes = {
        "yaxis": axis(autorange="reversed", showgrid=False, tickvals=places, ticktext=names),
        "xaxis": axis(title, **x),
    }
    return (
        Figure(key, 116 + 26 * len(labels), data, layout(**axes, bargap=0.28, showlegend=True), caption)
        if data
        else None
    )


def device_figure(result: Result) -> Figure | None:
    """Where each rank's device time went, over all of its work and over that with a launch, where these differ."""
    known = [(row, row.all) for row in result.ranks if row.all is not None]
    chosen = sorted(sorted(known, key=lambda one: -one[1].exposed_ns)[:RANKS_MAX], key=lambda one: one[0].rank)
    pieces = [piece for row, population in chosen for piece in rank_pieces(row, population)]
    caption = "Each bar is the device's time from its first to its last work, all profiler windows together."
    if any(row.with_launch not in (None, population) for row, population in chosen):
        caption += " Where work without a launch in the file changes the picture, a second bar leaves it out."
    if len(chosen) < len(known):
        caption += f" The {len(chosen)} ranks with most exposed communication of {len(known)}."
    return stacked("device", pieces, "% of the device's time", caption, range=[0, 100])


def rank_pieces(row: RankRow, population: Population) -> Iterator[Piece]:
    yield from population_pieces(f"rank {row.rank} · {duration(population.span_ns)}", population)
    if row.with_launch is not None and row.with_launch != population:
        yield from population_pieces(f"rank {row.rank}, with launch", row.with_launch)


def population_pieces(label: str, population: Population) -> Iterator[Piece]:
    for part in device_parts(population):
        words = f"{plain(label)}: {PARTS[part.name]} {duration(part.ns)}, {plain(percent(part.ratio))}"
        yield Piece(label, part.name, PARTS[part.name], round(100 * part.ratio, 4), words)


def streams_figure(result: Result) -> Figure | None:
    """How busy each stream was in the typical step."""
    known = streams(result)
    shown = sorted(known, key=lambda one: -one.busy_ns)[:STREAMS_MAX]
    shown.sort(key=lambda stream: (stream.rank, -stream.busy_ns))
    pieces = [piece for stream in shown for piece in stream_pieces(stream)]
    whole = (
        "Mean over the typical steps of each rank" if any(stream.steps for stream in shown) else "All profiler windows"
    )
    some = f" The {len(shown)} busiest streams of {len(known)}." if len(shown) < len(known) else ""
    caption = f"{whole}; work of one kind that overlaps on a stream counts once.{some}"
    return stacked("streams", pieces, "ms", caption)


def stream_pieces(stream: StreamDigest) -> Iterator[Piece]:
    label = f"rank {stream.rank} · stream {stream.stream}"
    busy = f"busy {duration(stream.busy_ns)} of {duration(stream.window_ns)}, {stream.events:,.0f} pieces of work"
    for kind, name in KINDS.items():
        ns = getattr(stream, f"{kind}_ns")
        yield Piece(label, kind, name, ms([ns])[0], f"{plain(label)}: {name} {duration(ns)}<br>{busy}")


def scope_figures(result: Result) -> list[Figure]:
    """Device time by module, annotation and operator, those of them that the traces tell."""
    known = {kind: scope_figure(kind, found) for kind, found in scopes(result).items()}
    return [figure for figure in known.values() if figure is not None]


def scope_figure(kind: str, found: Sequence[ScopeDigest]) -> Figure | None:
    pieces = [piece for scope in found[:SCOPES_MAX] for piece in scope_pieces(scope)]
    some = f" The {SCOPES_MAX} largest of {len(found):,}." if len(found) > SCOPES_MAX else ""
    around = "outermost" if kind == "operator" else "innermost"
    caption = f"By the {around} {kind} around the launch, mean per rank; durations are added up.{some}"
    return stacked(f"scopes-{kind}", pieces, "ms of device time", caption)


def scope_pieces(scope: ScopeDigest) -> Iterator[Piece]:
    label = shortened(scope.name.replace(ENGINE, "autograd: "), NAME_MAX)
    modules = f"{scope.instances} modules, " if scope.instances > 1 else ""
    whole = f"{modules}{scope.events:,.0f} pieces of work, {plain(percent(scope.ratio))} of all device time"
    for kind, name in KINDS.items():
        ns = getattr(scope, f"{kind}_ns")
        yield Piece(label, kind, name, ms([ns])[0], f"{plain(label)}: {name} {duration(ns)}<br>{whole}")
