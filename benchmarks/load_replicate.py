"""Makes large trace files from a small real one: its events again and again, each time later and with other numbers.

    the trace   ├ events ┤
    a replica   ├ events ┤ ├ events ┤ ├ events ┤   times, correlation and other ids, ProfilerStep numbers go on

Everything else stays as the profiler wrote it, digit by digit and blank by blank, so that reading a replica costs what
reading a long trace costs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from ddptrace.errors import DdptraceError
from ddptrace.load.kineto.source import NotATrace, Source

GAP_US: Final = 1000  # between two copies
LEVEL: Final = 6
"""Level of gzip: zlib's default, between those of torch's exporters."""

NUMBER: Final = re.compile(
    rb'(?:"(?P<time>ts)"|"(?P<id>correlation|External id|external id|id)")\s*:\s*"?(-?\d+)|(?P<step>ProfilerStep)#(\d+)'
)
TIME, ID, STEP = range(3)


@dataclass(frozen=True, slots=True)
class Template:
    """The events of a trace, cut at the numbers that change: text, number, text, …, text."""

    texts: tuple[bytes, ...]
    numbers: tuple[int, ...]
    kinds: tuple[int, ...]  # TIME in whole µs (its decimals are text), ID or STEP
    strides: tuple[int, int, int]  # by kind, from copy to copy
    around: dict[str, Any]  # the file's other keys

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.texts)) + sum(len(str(number)) for number in self.numbers)

    def copies(self, count: int) -> Iterator[bytes]:
        """Yield the text of all events, copy by copy, with commas between them."""
        for copy in range(count):
            steps = [copy * stride for stride in self.strides]
            numbers = (b"%d" % (number + steps[kind]) for number, kind in zip(self.numbers, self.kinds, strict=True))
            pieces = itertools.chain.from_iterable(zip(self.texts, numbers, strict=False))
            yield (b",\n" if copy else b"") + b"".join(pieces) + self.texts[-1]


def replicate(trace: Path, folder: Path, *, ranks: int, nbytes: int) -> list[Path]:
    """Write one file for each rank, of about `nbytes` unpacked and at least one whole copy. They differ only in the
    rank.

    Raises: DdptraceError if `trace` is not a trace.
    """
    template = read_template(trace)
    count = max(1, round(nbytes / template.nbytes))
    paths = [folder / f"rank-{rank}.json.gz" for rank in range(ranks)]
    with contextlib.ExitStack() as stack:
        files = [Packed(stack.enter_context(path.open("wb"))) for path in paths]
        for rank, file in enumerate(files):
            file.write(_head(template, rank, ranks))
        for text in template.copies(count):
            for file in files:
                file.write(text)
        for file in files:
            file.end(b"\n]}\n")
    return paths


class Packed:
    """A gzip file, written piece by piece."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._packer = zlib.compressobj(LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def write(self, text: bytes) -> None:
        self._file.write(self._packer.compress(text))

    def end(self, text: bytes) -> None:
        self.write(text)
        self._file.write(self._packer.flush())


def _head(template: Template, rank: int, ranks: int) -> bytes:
    """Return the text before the events. HTA finds a rank only after a blank, which `json` writes."""
    info = {"backend": "nccl", "rank": rank, "world_size": ranks}
    around = json.dumps(template.around | {"distributedInfo": info}, indent=1)
    return around.removesuffix("\n}").encode() + b',\n"traceEvents": [\n'


def read_template(trace: Path) -> Template:
    """Read a trace. Raises: DdptraceError if it holds no events of a profiler."""
    import msgspec

    try:
        text = b"".join(Source(trace).pieces())
        whole = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except OSError as error:
        raise DdptraceError(
            f"{trace} cannot be read ({error.strerror or error}); give a trace of torch.profiler"
        ) from error
    except (NotATrace, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DdptraceError(f"{trace} cannot be read as a trace ({error}); give a whole one") from error
    around = whole if isinstance(whole, dict) else {}
    events = bytes(around.pop("traceEvents", b"")) if isinstance(whole, dict) else text
    found = list(NUMBER.finditer(events))
    if not any(one["time"] for one in found):
        raise DdptraceError(f"{trace} holds no events with times; give a trace of torch.profiler")
    told = {name: msgspec.json.decode(value) for name, value in around.items() if name != "distributedInfo"}
    return _template(events.strip()[1:-1].strip(), told)


def _template(events: bytes, around: dict[str, Any]) -> Template:
    texts, numbers, kinds, at = [], [], [], 0
    for one in NUMBER.finditer(events):
        group = 5 if one["step"] else 3
        number = int(one[group])
        if one["id"] and number <= 0:  # means that there is none
            continue
        texts.append(events[at : one.start(group)])
        numbers.append(number)
        kinds.append(STEP if one["step"] else ID if one["id"] else TIME)
        at = one.end(group)
    texts.append(events[at:])
    return Template(tuple(texts), tuple(numbers), tuple(kinds), _strides(events, numbers, kinds), around)


def _strides(events: bytes, numbers: list[int], kinds: list[int]) -> tuple[int, int, int]:
    ids, steps = ([n for n, kind in zip(numbers, kinds, strict=True) if kind == wanted] for wanted in (ID, STEP))
    return (
        _span_us(events) + GAP_US,
        max(ids, default=0) + 1,
        max(steps, default=0) - min(steps, default=0) + 1,
    )


def _span_us(events: bytes) -> int:
    """Return the time from the first begin to the last end, in whole µs."""
    import msgspec

    class Times(msgspec.Struct):
        ts: float | None = None
        dur: float | None = None

    times = [one for one in msgspec.json.decode(b"[" + events + b"]", type=list[Times]) if one.ts is not None]
    begin = min(one.ts for one in times if one.ts is not None)
    return int(max(one.ts + (one.dur or 0) for one in times if one.ts is not None) - begin) + 1
