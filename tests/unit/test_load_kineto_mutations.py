"""Thousands of damaged traces: each gives events or one sentence, and never fewer events than it says.

Python's own json module is the oracle: where it can read what we damaged, and our reader reports no damage, both must
have found the same events at the same nanoseconds.
"""

from __future__ import annotations

import faulthandler
import gzip
import json
import random
import re
import sys
from collections.abc import Iterator
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import pytest

from ddptrace.errors import RunDirectoryError
from ddptrace.load.kineto import source as kineto_source
from ddptrace.load.kineto import stream as kineto_stream
from ddptrace.load.kineto.events import FAR_NS, KinetoEvents
from ddptrace.load.kineto.reader import read_kineto
from tests.unit.kineto_mutants import Seed, all_seeds, flipped, mutated, truncated

pytestmark = pytest.mark.long

MUTANTS = 200  # of each seed, in each way of packing and cutting
KEPT = {
    "cpu_op", "operator", "user_annotation", "cuda_runtime", "cuda_driver", "runtime", "kernel", "gpu_memcpy",
    "gpu_memset", "memcpy", "memset", "python_function",
}  # fmt: skip
C_NAN = re.compile(rb"(?<=[:,\[ ])-?nan(?=[],} \n])")  # as C writes it: Python reads only its own spelling


@pytest.fixture(scope="module")
def seeds(shared_traces: Path) -> list[Seed]:
    return all_seeds(shared_traces)


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(300, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that files of a few kB are cut into many batches."""
    monkeypatch.setattr(kineto_source, "PIECE_NBYTES", 301)
    monkeypatch.setattr(kineto_source, "PACKED_NBYTES", 97)
    monkeypatch.setattr(kineto_stream, "BATCH_NBYTES", 700)


def read(path: Path, content: bytes) -> KinetoEvents | str:
    """What the reader makes of it, or its sentence."""
    path.write_bytes(content)
    try:
        events = read_kineto(path)
    except RunDirectoryError as error:
        return str(error)
    assert len({len(getattr(events, name)) for name in ("category", "name", "lane", "begin_ns", "end_ns")}) == 1
    assert (events.end_ns >= events.begin_ns).all()
    assert all(0 <= at < len(events.name) for at in events.collectives)
    return events


def exact(number: str) -> Decimal:
    try:
        return Decimal(number)
    except ArithmeticError:
        return Decimal(10) ** 400  # as far beyond any clock


def whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    return int((Decimal(value) * 1000).quantize(Decimal(1), ROUND_HALF_EVEN)) if abs(value) < 10**16 else FAR_NS


def begins_by_oracle(text: bytes) -> list[int] | None:
    """Begins of the events that should be kept; None where Python cannot read the text, or it is no trace."""
    text = C_NAN.sub(b"null", text)
    try:
        document = json.loads(
            text.decode("utf-8-sig", errors="replace"), strict=False, parse_float=exact, parse_constant=lambda _: None
        )
    except (ValueError, RecursionError):
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return None
    base = document.get("baseTimeNanoseconds") if isinstance(document, dict) else 0
    base = base if isinstance(base, int) and abs(base) < FAR_NS else 0
    kept = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    kept = [event for event in kept if isinstance(event.get("cat"), str) and event["cat"].lower() in KEPT]
    times = [(whole(event.get("ts")), whole(event.get("dur"))) for event in kept]
    return sorted(base + ts for ts, dur in times if ts is not None and dur is not None)


def judge(found: KinetoEvents | str, text: bytes) -> None:
    expected = begins_by_oracle(text)
    if isinstance(found, str):
        assert "\n" not in found and expected is None, f"refused what json reads: {found}"
    elif found.facts.damage is None:
        assert found.begin_ns.tolist() == expected, "None: json cannot read it, and yet no damage is told"


@pytest.mark.parametrize("cutting", ["in one piece", "in many pieces"])
def test_damaged_json_gives_events_or_a_sentence_and_loses_none_in_silence(
    seeds: list[Seed], cutting: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if cutting == "in many pieces":
        request.getfixturevalue("small_pieces")
    for seed in seeds:
        chance = random.Random(f"{seed.name} {cutting}")
        for number in range(MUTANTS):
            text = mutated(seed.text, chance)
            try:
                judge(read(tmp_path / "trace.json", text), text)
            except BaseException:
                print(f"mutant {number} of {seed.name}: {text[:3000]!r}")
                raise


def packed_mutant(seed: bytes, chance: random.Random) -> bytes:
    half = len(seed) // 2
    packed = gzip.compress(seed[:half], 1, mtime=0) + gzip.compress(seed[half:], 6, mtime=0)  # of two members
    way = chance.randrange(4)
    if way == 0:
        return packed + chance.choice((b"\0" * 9, b"x", b"\x1f", packed[:30]))
    return truncated(packed, chance) if way == 1 else flipped(packed, chance)


def test_a_damaged_packed_file_gives_exactly_its_events_or_tells_what_is_missing(
    seeds: list[Seed], small_pieces: None, tmp_path: Path
) -> None:
    for seed in seeds:
        chance, expected = random.Random(seed.name), begins_by_oracle(seed.text)
        for number in range(MUTANTS // 2):
            found = read(tmp_path / "trace.json.gz", packed_mutant(seed.text, chance))
            if isinstance(found, str):
                assert "\n" not in found
            elif found.facts.damage is None:
                assert found.begin_ns.tolist() == expected, f"mutant {number} of {seed.name}"


BOMBS = {
    "blanks": (b'{"traceEvents": [' + b" " * (70 << 20), 9, "unpacks to more than 300 times its size"),
    "no event": (b'{"traceEvents": [{"name": "' + b"ab" * (33 << 20), 1, "one event of more than 64 MB"),
    "no events": (b'{"a": "' + b"ab" * (17 << 20), 1, "more than 32 MB of it are not events"),
    "lists": (b'{"a": 1' + b', "traceEvents": []' * 100_000 + b"}", 9, "traceEvents more than 16 times"),
    "brackets": (b"[" * (30 << 20), 1, "nest more than 100,000 deep"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_that_unfolds_to_a_flood_is_cut_at_a_stated_limit(bomb: str, tmp_path: Path) -> None:
    content, level, sentence = BOMBS[bomb]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content, level))
    with pytest.raises(RunDirectoryError, match=sentence):
        read_kineto(path)
