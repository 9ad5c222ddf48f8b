"""Works on the test device alone, and tells what the host and the device did: `alone.py OUT`."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.device import testdev

LONG_NS = 500_000_000  # longer than a busy machine may hold a thread


def main() -> None:
    told: dict[str, Any] = {}
    ones = torch.ones(4).to("testdev")
    (ones + 1).sum().item()  # what torch does once only is done
    testdev.take_ledger()

    begin = time.perf_counter_ns()
    testdev.spend(LONG_NS)
    total = (ones + 1).sum()
    told["launching_ns"] = time.perf_counter_ns() - begin
    told["total"] = total.item()
    told["until_item_ns"] = time.perf_counter_ns() - begin

    side, before, after = torch.testdev.Stream(), *(torch.testdev.Event(enable_timing=True) for _ in range(2))
    with side:
        before.record()
        testdev.spend(LONG_NS)
        numbers = torch.full((4,), 2.0, device="testdev")
        after.record()
    told["done_at_once"] = after.query()
    torch.testdev.current_stream().wait_event(after)
    waiting = numbers * 3
    told["waited"] = waiting.cpu().tolist()
    told["elapsed_ms"] = before.elapsed_time(after)
    told["side"] = side.stream_id
    told["ledger"] = [dataclasses.asdict(entry) for entry in testdev.take_ledger()]

    told["missed"], told["error"] = missed_wait(side), error_of()
    Path(sys.argv[1]).write_text(json.dumps(told))


def missed_wait(side: torch.Stream) -> list[float]:
    """Read on another stream what has not been written."""
    numbers = torch.zeros(4, device="testdev")
    torch.testdev.synchronize()
    testdev.spend(LONG_NS)
    numbers.add_(1)
    with side:
        return numbers.cpu().tolist()


def error_of() -> str:
    """The error of a kernel: it comes when the host waits, not when it launches."""
    torch.nn.functional.embedding(torch.tensor([9], device="testdev"), torch.ones(3, 2, device="testdev"))
    try:
        torch.testdev.synchronize()
    except IndexError as error:
        return str(error)
    return ""


main()
