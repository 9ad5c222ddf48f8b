"""What each dimension of parallelism costs each step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.tables.units import DimensionRow
from ddptrace.analysis.units.places import Place


@dataclass(slots=True)
class _Sum:
    seqs: set[int] = field(default_factory=set)
    nbytes: int | None = 0
    comm_ns: int = 0
    charged_ns: int = 0


def dimension_rows(view: RankView) -> list[DimensionRow]:
    """List the dimensions of each step along which collectives ran that are known, in time order."""
    sums: defaultdict[int, defaultdict[Place, _Sum]] = defaultdict(lambda: defaultdict(_Sum))
    shares, previous = view.shares, -1
    for at, step, begin, end, charged in zip(
        shares.comm.tolist(),
        shares.step.tolist(),
        shares.begins.tolist(),
        shares.ends.tolist(),
        shares.charged.tolist(),
        strict=True,
    ):
        comm, is_first = view.comms[at], at != previous
        previous = at
        if step < 0:
            continue
        one = sums[step][view.members[at].place]
        one.seqs.add(comm.seq)
        one.comm_ns += end - begin
        one.charged_ns += charged
        if is_first:
            nbytes = None if comm.call is None else max(comm.call.nbytes_in, comm.call.nbytes_out)
            one.nbytes = None if one.nbytes is None or nbytes is None else one.nbytes + nbytes
    return [
        DimensionRow(
            view.rank.rank,
            view.rank.steps[step].ordinal,
            place.dimension,
            place.mesh,
            len(one.seqs),
            one.nbytes,
            one.comm_ns,
            one.charged_ns if view.knows_compute(step) else None,
        )
        for step, places in sorted(sums.items())
        for place, one in sorted(places.items(), key=lambda item: (item[0].dimension, item[0].mesh))
    ]
