"""Reads one rank's Flight Recorder dump: its process groups, its calls, and the lines that issued them.

Fields that a version does not have, or that hold something else than torch writes, count as unknown.

Of a call's stack, the lines of the program and of the library count; torch's own are left out:

all_reduce        torch/distributed/distributed_c10d.py     torch's
reduce_loss       site-packages/megatron/training/utils.py  the library's line
train_step        /work/train.py                            the program's line
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ddptrace.load.diagnosis.tables import LastCall
from ddptrace.load.flight_recorder.plain_pickle import PickleRefusedError, plain_value
from ddptrace.load.foreign.identity import dtype_of, usual_op
from ddptrace.load.tables import MOST_RANKS
from ddptrace.record.directory import read_regular

MAJOR: Final = "2"
LONGEST_VERSION: Final = 20
MOST_NBYTES: Final = 256 << 20
MOST_NUMBER: Final = 2**62
MOST_PARTS: Final = 5_000_000
"""Tensors and frames of all entries. A file may name one list of them in each of its entries, and so cost much more
than its own size tells."""
LONGEST_SHAPE: Final = 64
"""torch's own limit of dimensions."""
ON_HOST: Final = ("gloo", "mpi", "ucc")
"""Backends of which no state but `retired` tells that a call has ended."""
MESSAGE: Final = re.compile(r"(?:send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")
RANK: Final = re.compile(r"\d{1,7}")
COUNT: Final = re.compile(r"\d{1,18}")
COALESCED: Final = "coalesced"
UNDEFINED: Final = ("", "undefined")

GroupName = tuple[str, tuple[int, ...]]
"""Name and ranks: torch may give two groups of different ranks one name. No ranks: the dump does not tell them."""


class DumpError(ValueError):
    """A file is no dump, or cannot be read as one."""


@dataclass(frozen=True, slots=True)
class DumpedGroup:
    """A process group that the rank has used. `launched`: sequence number of the newest work of any kind in it; None
    where the dump does not tell."""

    name: GroupName
    label: str
    launched: int | None


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank dumped. `calls`: with the group of each, in order of launch."""

    groups: Mapping[GroupName, DumpedGroup]
    calls: tuple[tuple[GroupName, LastCall], ...]


def read_dump(path: Path) -> Dump:
    """Read a pickle or a JSON. Raises DumpError, with what is wrong with the file."""
    try:
        content = _content(read_regular(path, MOST_NBYTES))
    except OSError as error:
        raise DumpError(f"it cannot be read ({error.strerror or error})") from None
    if not isinstance(content, dict):
        raise DumpError("it is no dump of a Flight Recorder")
    version = content.get("version")
    if not isinstance(version, str):
        raise DumpError("it is no dump of a Flight Recorder: it holds no version")
    if version.partition(".")[0] != MAJOR:
        raise DumpError(f"its format is version {version[:LONGEST_VERSION]}, and only {MAJOR}.x is known")
    return _Reader(content).dump()


def _content(data: bytes) -> Any:
    if not data:
        raise DumpError("it is empty: the rank ended before it wrote the dump")
    try:
        return msgspec.json.decode(data) if data.lstrip()[:1] == b"{" else plain_value(data)
    except PickleRefusedError as error:
        raise DumpError(str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError):
        raise DumpError("its JSON is damaged") from None


class _Reader:
    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.entries = [entry for entry in _list(content.get("entries")) if isinstance(entry, dict)]
        self.is_timed = any(map(_is_started, self.entries))
        self.parts = 0
        self.config = {name: _known(name, about) for name, about in _dict(content.get("pg_config")).items() if name}

    def dump(self) -> Dump:
        calls = tuple((self.name_of(entry), call) for entry, call in self.calls())
        labels = {self.name_of(entry): _label(entry) for entry in self.entries}
        groups = {(name, ranks): label for name, (ranks, label) in self.config.items()} | labels
        launched = self.launched()
        return Dump({name: DumpedGroup(name, label, launched.get(name[0])) for name, label in groups.items()}, calls)

    def name_of(self, entry: Mapping[str, Any]) -> GroupName:
        name = _group_name(entry)
        return name, self.config.get(name, ((), ""))[0]

    def calls(self) -> Iterator[tuple[Mapping[str, Any], LastCall]]:
        """Yield entries with their calls. What was launched within one coalesced launch ends with it."""
        closing = {self._launch_of(entry): _is_done(entry) for entry in self.entries if _is_closing(entry)}
        for place, entry in enumerate(self.entries):
            launch = self._launch_of(entry)
            if not _is_closing(entry):
                yield entry, self._call(entry, place, _is_done(entry) or closing.get(launch, False))

    def _launch_of(self, entry: Mapping[str, Any]) -> tuple[Any, ...]:
        return self.name_of(entry), _number(entry.get("collective_seq_id")), _number(entry.get("p2p_seq_id"))

    def _call(self, entry: Mapping[str, Any], place: int, is_done: bool) -> LastCall:
        title, (_, ranks) = _text(entry.get("profiling_name")), self.name_of(entry)
        self._count_parts(entry)
        site, through = lines_of(entry.get("frames"))
        dtype, nbytes = _tensors(entry)
        return LastCall(
            turn=_turn(entry, title),
            seq=place,
            op=usual_op(title),
            nbytes=nbytes,
            dtype=dtype,
            peer=_peer(title, ranks),
            origin=None,
            site=site,
            through=through,
            module=None,
            bucket_of=None,
            launch_at_ns=_number(entry.get("time_created_ns")) or 0,
            is_sync=False,
            done=is_done,
            error=None,
            started=_is_started(entry) if self.is_timed else None,
        )

    def _count_parts(self, entry: Mapping[str, Any]) -> None:
        self.parts += sum(len(_list(entry.get(name))) for name in ("frames", "input_sizes", "output_sizes"))
        if self.parts > MOST_PARTS:
            raise DumpError(f"its entries name more than {MOST_PARTS:,} tensors and frames")

    def launched(self) -> dict[str, int]:
        """Return, by name of a group, the sequence number of its newest work. torch files it under the number that the
        group has in this process, which entries give beside the name."""
        status = {
            number: _number(_dict(about).get("last_enqueued_collective"))
            for number, about in _dict(self.content.get("pg_status")).items()
        }
        names = {str(entry.get("pg_id")): _group_name(entry) for entry in self.entries}
        names = self._by_order(list(status), names) or names
        return {names[number]: value for number, value in status.items() if number in names and value is not None}

    def _by_order(self, numbers: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
        """Pair the numbers of groups with their names: both are counted up. Where names are no numbers, or some group
        has no status, or an entry says otherwise, return nothing."""
        names = list(self.config)
        if len(numbers) != len(names) or not all(RANK.fullmatch(one) for one in (*numbers, *names)):
            return {}
        pairs = dict(zip(sorted(numbers, key=int), sorted(names, key=int), strict=True))
        return pairs if all(pairs.get(number) == name for number, name in known.items()) else {}


def _backend(entry: Mapping[str, Any]) -> str:
    return _text(entry.get("profiling_name")).partition(":")[0]


def _is_done(entry: Mapping[str, Any]) -> bool:
    if entry.get("state") == "completed":
        return True
    return entry.get("retired") is True and _backend(entry) in ON_HOST


def _is_started(entry: Mapping[str, Any]) -> bool:
    """As far as the rank timed its kernels (TORCH_NCCL_ENABLE_TIMING): without that, none is known to have begun."""
    return entry.get("state") == "started" or bool(_number(entry.get("time_discovered_started_ns")))


def _is_closing(entry: Mapping[str, Any]) -> bool:
    """Whether it stands for a coalesced launch, whose members have entries of their own and never end by themselves."""
    return _text(entry.get("profiling_name")).partition(":")[2] == COALESCED


def _turn(entry: Mapping[str, Any], title: str) -> int:
    names = ("p2p_seq_id", "seq_id") if MESSAGE.search(title) else ("collective_seq_id", "seq_id")
    return next((number for name in names if (number := _number(entry.get(name))) is not None), 0)


def _peer(title: str, ranks: tuple[int, ...]) -> int | None:
    """Return the other side of a message as a global rank: "recv 3<-2" counts within the group."""
    found = MESSAGE.search(title)
    if found is None or int(found[2]) >= len(ranks):
        return int(found[2]) if found is not None and not ranks else None
    return sorted(ranks)[int(found[2])]


def _group_name(entry: Mapping[str, Any]) -> str:
    """Older versions give the number of the group in the process alone."""
    told = entry.get("process_group")
    name = told[0] if isinstance(told, list | tuple) and told else told
    return name if isinstance(name, str) and name else str(_number(entry.get("pg_id")) or 0)


def _label(entry: Mapping[str, Any]) -> str:
    told = entry.get("process_group")
    label = told[1] if isinstance(told, list | tuple) and len(told) > 1 else ""
    return "" if label in UNDEFINED or not isinstance(label, str) else label


def _known(name: object, about: object) -> tuple[tuple[int, ...], str]:
    """The ranks and the label of a group."""
    said = _dict(about)
    label = _text(said.get("desc"))
    ranks = said.get("ranks")
    listed = ranks_in(ranks) if isinstance(ranks, str) else tuple(_list(ranks))
    return listed if all(_number(rank) is not None for rank in listed) else (), "" if label in UNDEFINED else label


@functools.lru_cache(4096)
def ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks in "[0, 2, 4]"."""
    ranks = tuple(map(int, RANK.findall(text)))
    return ranks if len(ranks) <= MOST_RANKS else ()


def _tensors(entry: Mapping[str, Any]) -> tuple[str, int]:
    """Return the type of the tensors, "" if they differ, and the bytes of the larger side, 0 if unknown."""
    sides = [(_list(entry.get(f"{side}_sizes")), _list(entry.get(f"{side}_dtypes"))) for side in ("input", "output")]
    types = {kind for _, kinds in sides for kind in kinds if isinstance(kind, str)}
    named = {dtype_of(kind)[0] for kind in types}
    return named.pop() if len(named) == 1 else "", max(_nbytes(sizes, kinds) for sizes, kinds in sides)


def _nbytes(sizes: Sequence[Any], kinds: Sequence[Any]) -> int:
    total = 0
    for k, shape in enumerate(sizes):
        kind = kinds[min(k, len(kinds) - 1)] if kinds else None
        element = dtype_of(kind)[1] if isinstance(kind, str) else None
        total += _elements(shape) * (element or 0)
    return total if total < MOST_NUMBER else 0


def _elements(shape: Any) -> int:
    if not isinstance(shape, list | tuple) or len(shape) > LONGEST_SHAPE:
        return 0
    dims = [_number(dim) for dim in shape]
    return math.prod(dim or 0 for dim in dims)


def _number(value: object) -> int | None:
    """A count, also where JSON holds it as a text; None for anything else."""
    if isinstance(value, str) and COUNT.fullmatch(value):
        return int(value)
    return value if type(value) is int and 0 <= value < MOST_NUMBER else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _dict(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


# The lines that issued a call -----------------------------------------------------------------------------------------


OF_TORCH: Final = re.compile(
    r"(?:site|dist)-packages/torch/"
    r"|(?:^|/)torch/(?:autograd|cuda|distributed|fx|multiprocessing|nn|optim|utils|_\w+)(?:/|\.py$)"
    r"|\.(?:cpp|cc|c|h|hpp|cu|so)(?:\.\d+)*$|^<|^\?\?$|^$"
)
"""Torch's own files, installed or built from source, code without a file, and the frames of C++."""
OF_PYTHON: Final = re.compile(r"(?:^|/)lib/python\d[^/]*/(?!.*(?:site|dist)-packages/)")
INSTALLED: Final = re.compile(r".*/(?:site|dist)-packages/", re.DOTALL)
PATH_PARTS: Final = 2
"""Of the path of a file of the program, so many parts are shown."""
MOST_FRAMES: Final = 1_000

Lines = tuple[str | None, str | None]


def lines_of(frames: object) -> Lines:
    """Return the innermost line of the program, as in "work/train.py:42 in step", and the line of the library that it
    called, if there is one between the program and torch. Where there is only a library, its line counts as the
    program's. `frames`: of a dump's entry, innermost first."""
    if not isinstance(frames, Sequence) or isinstance(frames, str | bytes):
        return None, None
    library = None
    for frame in frames[:MOST_FRAMES]:
        file, line, name = _fields(frame)
        if OF_TORCH.search(file) or OF_PYTHON.search(file):
            continue
        if not INSTALLED.match(file):
            return _line(file, line, name), library
        library = library or _line(file, line, name)
    return library, None


def _fields(frame: Any) -> tuple[str, int, str]:
    """As they are; an empty file where there is none."""
    told = frame if isinstance(frame, dict) else {}
    file, line, name = told.get("filename"), told.get("line"), told.get("name")
    return (
        file if isinstance(file, str) else "",
        line if isinstance(line, int) else 0,
        name if isinstance(name, str) else "?",
    )


@functools.lru_cache(4096)
def _line(file: str, line: int, name: str) -> str:
    return f"{_short(file)}:{line} in {name}"


def _short(file: str) -> str:
    """A library's file as Python imports it; of any other, the end of its path."""
    installed = INSTALLED.match(file)
    return file[installed.end() :] if installed else "/".join(file.split("/")[-PATH_PARTS:])
