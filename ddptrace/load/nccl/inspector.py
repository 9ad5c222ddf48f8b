"""Files of NCCL Inspector, a plugin of NCCL: one JSON object a line for each collective and each message.

{"header":{"id":"0x7f8c","rank":2,"n_ranks":8,…},"metadata":{…},"coll_perf":{"coll":"AllReduce","coll_sn":1407,
 "coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_timing_source":"kernel_gpu","coll_busbw_gbs":485.1}}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ddptrace.load.kineto.args import REFUSED, count
from ddptrace.load.tables import NcclTime

MOST_RANKS: Final = 2**20


class _Header(msgspec.Struct):
    rank: Any = None
    n_ranks: Any = None


class _Record(msgspec.Struct):
    header: _Header
    collective: dict[str, Any] | None = msgspec.field(default=None, name="coll_perf")
    message: dict[str, Any] | None = msgspec.field(default=None, name="p2p_perf")


_RECORD: Final = msgspec.json.Decoder(_Record)


def times(lines: Iterable[bytes]) -> Iterator[NcclTime]:
    """Yield what each line tells; lines that are damaged or cut short are passed over."""
    for line in lines:
        try:
            record = _RECORD.decode(line)
        except REFUSED:
            continue
        for kind, told in (("coll", record.collective), ("p2p", record.message)):
            found = None if told is None else _time(record.header, kind, told)
            if found is not None:
                yield found


def _time(header: _Header, kind: str, told: dict[str, Any]) -> NcclTime | None:
    function, nbytes = told.get(kind), count(told.get(f"{kind}_msg_size_bytes"))
    took_us, rank = count(told.get(f"{kind}_exec_time_us")), count(header.rank)
    if not isinstance(function, str) or nbytes is None or not took_us or rank is None:
        return None
    source = told.get(f"{kind}_timing_source")
    return NcclTime(
        function,
        nbytes,
        rank,
        count(header.n_ranks),
        took_us * 1000,
        _bytes_per_s(told.get(f"{kind}_algobw_gbs")),
        _bytes_per_s(told.get(f"{kind}_busbw_gbs")),
        source if isinstance(source, str) else "",
    )


def _bytes_per_s(gb: Any) -> float | None:
    is_rate = isinstance(gb, int | float) and not isinstance(gb, bool) and 0 < gb < 1e9
    return gb * 1e9 if is_rate else None
