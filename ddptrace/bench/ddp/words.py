"""Why a stopwatch around communication calls and a trace say such different things, in the numbers just measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ddptrace.bench.ddp.cell import DDP, Cell
from ddptrace.render.words import EVIDENCE, millis
from ddptrace.schema import Evidence

FAR_RATIO: Final = 1.5
"""From which on a stopwatch that says less is called misleading: steps and traced steps are not the same ones."""
APPROXIMATE: Final = (Evidence.CALLBACK.value, Evidence.HOST.value)


def host_words(cells: Sequence[Cell]) -> Iterator[str]:
    """Of one cell: the one where stock DDP communicates for the largest share of the step."""
    cell = max(cells, key=lambda one: one.comm_ratio(DDP) or 0.0)
    for strategy in cell.strategies:
        if strategy not in SENTENCES:
            continue
        if cell.comm_ratio(strategy) is None:
            where = f"{_name(strategy)} with {cell.told()}"
            yield f"The trace of {where} tells of no communication to set beside the stopwatch's."
        else:
            yield SENTENCES[strategy](cell, strategy)


def _issued(cell: Cell, strategy: str) -> str:
    """Stock DDP and our reducer: a stopwatch sees them issue, and hardly anything of what follows."""
    host, true = cell.host_ratio(strategy), cell.comm_ratio(strategy) or 0.0
    if true < FAR_RATIO * host:
        return f"{_both(cell, strategy)}; here the stopwatch does not miss much."
    where = "in C++, where no stopwatch in Python is" if strategy == DDP else "after the stretch that was timed"
    return (
        f"{_both(cell, strategy)}. An asynchronous all-reduce returns as soon as it is queued, and {_name(strategy)} "
        f"waits for it {where}: the stopwatch's {_percent(host)} is the issuing, and the true numbers are the trace's."
    )


def _waited(cell: Cell, strategy: str) -> str:
    """Overlap by hand: issuing and waiting."""
    true = cell.traced[strategy]
    if cell.host_comm_ns(strategy) >= true["comm_ns"]:
        return f"{_both(cell, strategy)}; here issuing and waiting took as long as all communication."
    return (
        f"{_both(cell, strategy)}. The stopwatch sees the issuing and the waits, and cannot see what backward hid: "
        f"{millis(true['hidden_ns'])} ms."
    )


def _blocked(cell: Cell, strategy: str) -> str:
    """Synchronous calls: everything until the thread runs again."""
    host, true = cell.host_comm_ns(strategy), cell.traced[strategy]
    told = _both(cell, strategy)
    if host < true["comm_ns"]:
        queued = ", since a call there returns when its kernel is queued" if cell.backend == "nccl" else ""
        return f"{told}; here the stopwatch does not overstate{queued}."
    moved = true["transfer_ns"]
    part = "" if moved is None else f"; on the rank that came last, which waited for nobody, it was {millis(moved)} ms"
    return (
        f"{told}{part}. A blocking call overstates communication: its time counts waiting for slower ranks, as the "
        "backend's own does too, and until the thread runs again."
    )


SENTENCES: Final[dict[str, Callable[[Cell, str], str]]] = {
    "naive": _blocked,
    "flat": _blocked,
    "overlap": _waited,
    "bucketed": _issued,
    DDP: _issued,
}


def _both(cell: Cell, strategy: str) -> str:
    """The two numbers side by side."""
    true: dict[str, Any] = cell.traced[strategy]
    comm, ratio = cell.host_comm_ns(strategy), cell.comm_ratio(strategy) or 0.0
    doubt = f" ({EVIDENCE[Evidence(true['evidence'])]})" if true["evidence"] in APPROXIMATE else ""
    return (
        f"{_name(strategy)} with {cell.told()}: a stopwatch around its calls says {millis(comm)} ms, "
        f"{_percent(cell.host_ratio(strategy))} of its step of {millis(cell.host_step_ns(strategy))} ms; in the trace "
        f"the backend communicated for {millis(true['comm_ns'])} ms, {_percent(ratio)} of its step of "
        f"{millis(true['window_ns'])} ms, {millis(true['exposed_ns'])} ms of it exposed{doubt}"
    )


def _name(strategy: str) -> str:
    return "stock DDP" if strategy == DDP else strategy


def _percent(ratio: float) -> str:
    """With a decimal: what is small is the point."""
    return f"{100 * ratio:.1f} %"
