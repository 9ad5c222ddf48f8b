"""Damaged Kineto files: the seeds, made by hand and cut from real traces, and the ways of damaging them."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TOKENS = [
    b"NaN", b"-Infinity", b"nan", b"-nan", b"null", b"true", b'"x"', b"[]", b"{}", b"1e999", b"-1", b"0.0005", b"-0",
    b"18446744073709551616", b"9" * 400, b"[" * 3000 + b"]" * 3000, b'{"a":' * 600 + b"1" + b"}" * 600, b'"\\ud800"',
    b'"\\ud83d\\ude00"', b'"\xe9"', b'"\\q"', b'"traceEvents"', b'"traceEvents": [', b"1.5e3", b"4393269873509.4745",
    b"1795250295873509.474", b',"ts": 5', b',"traceEvents": []', b"},\n  {", b"}", b"]", b"{", b"[", b",", b'"', b"\\",
    b":", b"\x00", b"\n",
]  # fmt: skip
SCALAR = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|null|true|false')


@dataclass(frozen=True, slots=True)
class Seed:
    name: str
    text: bytes


def hand_made() -> Iterator[Seed]:
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 4393269873509.474, "dur": 2.5}
    kernel = op | {"cat": "Kernel", "name": "ncclDevKernel", "tid": "stream 7", "ts": 4393269873510}
    kernel["args"] = {"correlation": 5, "stream": -1, "Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}
    sent = op | {
        "cat": "user_annotation",
        "name": "gloo:all_reduce",
        "args": {"Input Dims": [[3, 4]], "Input type": ["float"]},
    }
    call = op | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 5, "nested": [{"ph": "X"}]}}
    thread = {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "ts": 0, "args": {"name": 'main \\" [{ é \n'}}
    flow = {"ph": "s", "id": 5, "pid": 7, "tid": 7, "ts": 4393269873509.474, "cat": "ac2g", "name": "ac2g"}
    events = [op, kernel, thread, sent, flow, call] * 3
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "pg_config": [{"pg_name": "0", "ranks": "[0, 1]"}]}}
    tail = {"traceName": "a", "baseTimeNanoseconds": 1790857026000000000}
    yield Seed("compact", json.dumps(head | {"traceEvents": events} | tail, separators=(",", ":")).encode())
    yield Seed("indented", json.dumps(head | {"traceEvents": events} | tail, indent=2).encode())
    yield Seed("events last", json.dumps(head | tail | {"traceEvents": events}).encode())
    yield Seed("bare list", json.dumps(events, ensure_ascii=False).encode())


def cut_from(trace: Path, many: int) -> Seed:
    """The first and last events of a real trace with what stands around them, as it was written."""
    text = gzip.decompress(trace.read_bytes()).decode()
    begin = text.index("[", max(text.find('"traceEvents"'), 0)) + 1
    ends, at, decoder = [], begin, json.JSONDecoder()
    while True:
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        if text[at] == "]":
            break
        at = decoder.raw_decode(text, at)[1]
        ends.append(at)
    return Seed(trace.name, (text[: ends[many]] + text[ends[-many] :]).encode())


FROM_REAL = {
    "odd/triton_example.json.gz": 4,
    "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz": 8,
    "odd/cpu_only_gloo_rank34.pt.trace.json.gz": 6,
    "odd/bare_list_2021.json.gz": 10,
    "odd/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz": 1,
    "ddp-a100/nccl_data.json.gz": 8,
}


def all_seeds(traces: Path) -> list[Seed]:
    return [*hand_made(), *(cut_from(traces / name, many) for name, many in FROM_REAL.items())]


def mutated(text: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        text = chance.choice(WAYS)(text, chance)
    return text


def truncated(text: bytes, chance: random.Random) -> bytes:
    return text[: chance.randrange(len(text) + 1)]


def flipped(text: bytes, chance: random.Random) -> bytes:
    if not text:
        return text
    at = chance.randrange(len(text))
    return text[:at] + bytes([text[at] ^ 1 << chance.randrange(8)]) + text[at + 1 :]


def without_some(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + text[at + chance.choice((1, 2, 8, 100)) :]


def with_token(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(TOKENS) + text[at:]


def with_other_value(text: bytes, chance: random.Random) -> bytes:
    found = list(SCALAR.finditer(text))
    if not found:
        return text
    scalar = chance.choice(found)
    return text[: scalar.start()] + chance.choice(TOKENS) + text[scalar.end() :]


def with_a_part_twice(text: bytes, chance: random.Random) -> bytes:
    lines = re.split(rb"(?<=[,{])", text)
    at = chance.randrange(len(lines))
    return b"".join([*lines[: at + 1], lines[at], *lines[at + 1 :]])


WAYS: list[Callable[[bytes, random.Random], bytes]] = [
    truncated, flipped, without_some, with_token, with_other_value, with_other_value, with_a_part_twice,
]  # fmt: skip
