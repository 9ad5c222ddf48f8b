"""How many bytes an all-to-all sends to each rank of its group: tokens to their experts are seldom divided evenly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch.distributed as dist

from ddptrace.capture.collectives.tap import Operator
from ddptrace.record import Recorder
from ddptrace.schema import Kind

SPLIT: Final = int(Kind.SPLIT)


def sent_to_each(op: Operator, args: tuple[Any, ...], nbytes: int) -> list[int]:
    """Return the bytes for each rank of the group; nothing where the call does not tell, or a compiler traces it with
    sizes that are symbols. `nbytes`: of all of it."""
    if type(nbytes) is not int:  # to compare symbols would change what is compiled
        return []
    given = args[op.inputs[0]]
    if isinstance(given, list | tuple):
        return [tensor.nbytes for tensor in given]
    if op.splits is None or any(type(count) is not int for count in args[op.splits]):
        return []
    rows = args[op.splits]
    if rows:
        total = sum(rows)
        return [nbytes * count // total for count in rows] if total else [0] * len(rows)
    size = dist.ProcessGroup.unbox(args[op.group]).size()
    return [nbytes // size] * size


def write_splits(recorder: Recorder, seq: int, launch: int, sent: Sequence[int]) -> None:
    """Record the bytes that a call sends to each rank."""
    ranks = len(sent)
    if ranks and min(sent) == max(sent):
        recorder.event(SPLIT, 1, 0, launch, launch, seq, sent[0], 0, 0, ranks)
        return
    for place in range(0, ranks, 2):
        second = sent[place + 1] if place + 1 < ranks else 0
        recorder.event(SPLIT, 0, 0, launch, launch, seq, sent[place], second, place, ranks)
