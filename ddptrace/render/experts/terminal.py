"""What the terminal says of all-to-alls: who gets how much, by layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddptrace.analysis.experts.digest import LayerDigest, layer_digests
from ddptrace.analysis.result import Result
from ddptrace.errors import printable
from ddptrace.render.words import both_ends
from ddptrace.units import NOT_MEASURED, millis, size

MOST_LAYERS: Final = 5


def expert_lines(result: Result) -> Iterator[str]:
    """Nothing where no all-to-all is known on all its ranks."""
    digests = layer_digests(result)
    if not digests:
        return
    some = f"the {MOST_LAYERS} most uneven of {len(digests)}, " if len(digests) > MOST_LAYERS else ""
    yield f"All-to-alls  ({some}bytes that a rank gets in a step)"
    yield f"  {'layer':<32} {'phase':<9} {'mean':>9} {'most':>9} {'max / mean':>11} {'rank':>5} {'costs ms':>9}"
    yield from map(layer_line, digests[:MOST_LAYERS])


def layer_line(digest: LayerDigest) -> str:
    gets = digest.received_nbytes
    sizes = f"{size(round(sum(gets) / len(gets))):>9} {size(round(max(gets))):>9}"
    cost = NOT_MEASURED if digest.cost_ns is None else millis(digest.cost_ns)
    layer = both_ends(printable(digest.layer), 32)
    largest = NOT_MEASURED if digest.largest_rank is None else digest.largest_rank
    uneven = f"{digest.imbalance_ratio:>11.2f} {largest:>5} {cost:>9}"
    return f"  {layer:<32} {digest.phase or NOT_MEASURED:<9} {sizes} {uneven}"
