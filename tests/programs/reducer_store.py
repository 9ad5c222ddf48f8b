"""Two ranks, no launcher: rank 0 serves the store, and fails, ends or stops. `reducer_store.py CASE`

Each rank prints, as JSON, what it was told and after how many seconds, and ends at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ddptrace.errors import DdptraceError
from ddptrace.reducer import BucketedDataParallel
from ddptrace.reducer import notes as meeting
from ddptrace.reducer.notes import are_set
from tests.programs.reducer_misuse import Net, odd, step

TIMEOUT_S = 3


def wrap(width: int = 16) -> BucketedDataParallel:
    return BucketedDataParallel(Net(width), timeout_s=TIMEOUT_S)


def first_rank_stops_in_training() -> None:
    model = wrap()
    step(model)
    stop()
    step(model)


def first_rank_stops_before_the_second_model() -> None:
    wrap()
    stop()
    wrap()


def first_rank_stops_for_a_while() -> None:
    model = wrap()
    step(model)
    stop()
    step(model)
    print(json.dumps({"said": "trained", "seconds": 0}), flush=True)


def first_rank_raises_first() -> None:
    """The last rank is slow to read what the first one has read already."""
    if odd():
        meeting.are_set = lambda *asked: are_set(*asked) and not time.sleep(0.3)  # type: ignore[attr-defined, func-returns-value]
    wrap(width=20 if odd() else 16)


def first_rank_gives_up() -> None:
    model = wrap()
    for _ in range(2):
        step(model, whole=odd())


def first_rank_ends_before_the_second_model() -> None:
    wrap()
    dist.barrier()
    if not odd():
        os._exit(0)
    wrap()


def stop() -> None:
    dist.barrier()
    if not odd():
        os.kill(os.getpid(), signal.SIGSTOP)


CASES: dict[str, Callable[[], None]] = {
    made.__name__: made
    for made in (first_rank_stops_in_training, first_rank_stops_before_the_second_model, first_rank_stops_for_a_while,
                 first_rank_raises_first, first_rank_gives_up, first_rank_ends_before_the_second_model)
}  # fmt: skip


def main(case: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    begin = time.monotonic()
    try:
        CASES[case]()
    except DdptraceError as error:
        print(json.dumps({"said": str(error), "seconds": time.monotonic() - begin}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
