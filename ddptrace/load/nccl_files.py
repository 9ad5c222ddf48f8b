"""Finds and reads what NCCL itself wrote of its collectives: its debug logs and the files of NCCL Inspector.

Logs of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=TUNING tell which algorithm and protocol NCCL chose:

node-01:631871:631871 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}
node-01:631871:631871 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL nchannels 8 nthreads 512

NCCL Inspector, a plugin of NCCL, writes one JSON object a line for each collective and each message:

{"header":{"id":"0x7f8c","rank":2,"n_ranks":8,…},"metadata":{…},"coll_perf":{"coll":"AllReduce","coll_sn":1407,
 "coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_timing_source":"kernel_gpu","coll_busbw_gbs":485.1}}
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import msgspec

from ddptrace.errors import RunDirectoryError, printable
from ddptrace.findings import NCCL_LOG_LEFT_OUT, Finding
from ddptrace.load.kineto.args import REFUSED, count
from ddptrace.load.tables import UNTOLD, NcclChoice, NcclTime, NcclTold
from ddptrace.record.directory import open_regular

LONGEST_LINE: Final = 1 << 20
"""Verbose records of NCCL Inspector, with an event for each channel, take some kB."""
MOST_NBYTES: Final = 256 << 20
"""Of all logs that lie in a run's folder: reading these takes some seconds."""
LISTED: Final = 3


def read_files(paths: Sequence[Path]) -> tuple[NcclTold, tuple[str, ...]]:
    """Read files, and all files in folders. Return what they tell, and which of them cannot be opened.

    Raises RunDirectoryError if none of them tells anything of NCCL.
    """
    told, unreadable = _read(_files(paths))
    if told == UNTOLD:
        where = ", ".join(map(printable, paths))
        why = f"; cannot be read: {', '.join(unreadable[:3])}" if unreadable else ""
        raise RunDirectoryError(
            f"{where} tells nothing of NCCL's collectives{why}: give logs of NCCL_DEBUG=INFO with"
            " NCCL_DEBUG_SUBSYS=INIT,TUNING, or files of NCCL Inspector"
        )
    return told, unreadable


def read_logs(logs: Sequence[Path]) -> tuple[NcclTold, tuple[Finding, ...]]:
    """Read the logs that lie in the folder of a run, as many as take some seconds. Those of something else tell
    nothing."""
    sums = accumulate(path.stat().st_size for path in logs)
    near = [path for path, total in zip(logs, sums, strict=True) if total <= MOST_NBYTES]
    told, unreadable = _read(near)
    left = (*map(printable, logs[len(near) :]), *unreadable)
    if not left:
        return told, ()
    why = "which cannot be opened" if len(near) == len(logs) else f"as all are more than {MOST_NBYTES >> 20} MB"
    some = ", ".join(left[:LISTED]) + " …" * (len(left) > LISTED)
    message = f"the table nccl does without these logs, {why}: {some}; `ddptrace nccl LOG --run RUN` reads one alone"
    return told, (NCCL_LOG_LEFT_OUT("run", message),)


def _read(paths: Iterable[Path]) -> tuple[NcclTold, tuple[str, ...]]:
    """Return what files tell, and which of them cannot be opened."""
    chosen: Counter[NcclChoice] = Counter()
    timed: list[NcclTime] = []
    unreadable: list[str] = []
    for path in paths:
        try:
            chosen += _choices_in(_lines(path))
            timed += _times_in(_lines(path))
        except OSError as error:
            unreadable.append(f"{printable(path)} ({error.strerror})")
    return NcclTold(chosen, tuple(timed)), tuple(unreadable)


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise RunDirectoryError(f"{printable(path)} does not exist; give NCCL's logs, or a folder of them")
        if path.is_dir():
            yield from sorted(Path(root, name) for root, _, names in os.walk(path) for name in names)
        else:
            yield path


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(LONGEST_LINE):
            yield line


# Debug logs -----------------------------------------------------------------------------------------------------------


LINE: Final = re.compile(
    rb"NCCL INFO (?P<function>\w{2,40})(?: \[(?P<way>[\w ]{1,40})\])?: (?P<nbytes>\d{1,18}) Bytes -> "
    rb"(?P<choice>.{1,200})"
)
ALGORITHM: Final = re.compile(
    r"Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,4})\.\.(?P<high>\d{1,4})\}"
)
KERNEL: Final = re.compile(r"Kernel (?P<kernel>\w+) nchannels (?P<channels>\d{1,4})")


def _choices_in(lines: Iterable[bytes]) -> Counter[NcclChoice]:
    """Count each choice that a log tells. Other lines, and what newer versions write otherwise, are passed over."""
    found: Counter[NcclChoice] = Counter()
    for line in lines:
        told = LINE.search(line)
        if told is not None:
            choice = _choice(told["choice"].decode(errors="replace"), (told["way"] or b"").decode())
            found[NcclChoice(told["function"].decode(), int(told["nbytes"]), *choice)] += 1
    return found


def _choice(text: str, way: str) -> tuple[str, str, int | None]:
    """Algorithm, protocol and number of channels."""
    usual, kernel = ALGORITHM.match(text), KERNEL.match(text)
    if usual is not None:
        channels = int(usual["high"]) - int(usual["low"]) + 1
        return usual["algorithm"], usual["protocol"], channels if channels > 0 else None
    if kernel is not None:
        return f"{way} {kernel['kernel']}".strip(), "", int(kernel["channels"])
    return way or text.strip(), "", None


# NCCL Inspector -------------------------------------------------------------------------------------------------------


class _Header(msgspec.Struct):
    rank: Any = None
    n_ranks: Any = None


class _Record(msgspec.Struct):
    header: _Header
    collective: dict[str, Any] | None = msgspec.field(default=None, name="coll_perf")
    message: dict[str, Any] | None = msgspec.field(default=None, name="p2p_perf")


_RECORD: Final = msgspec.json.Decoder(_Record)


def _times_in(lines: Iterable[bytes]) -> Iterator[NcclTime]:
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
