"""Captures a graph in one step of a training on the test device, under a trace: `captured.py RUN OUT`.

The test device has no graphs. A class with the methods of `torch.cuda.CUDAGraph` says when one is captured, and in that
time events refuse to be recorded or asked for, as on CUDA. Rank R leaves `told-R.json` in OUT: the number of captures
that the program made.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ddptrace
from tests.device import testdev
from tests.device.device import HERE
from tests.device.programs.training import WRAPPERS, trained

STEPS, CAPTURED = 8, 4


class Graph:
    captures = 0
    is_capturing = False

    def capture_begin(self) -> None:
        Graph.captures += 1
        Graph.is_capturing = True

    def capture_end(self) -> None:
        Graph.is_capturing = False


def refusing(name: str) -> Any:
    original = getattr(testdev.Event, name, None) or getattr(torch.Event, name)

    def refuse(event: Any, *args: Any) -> Any:
        if Graph.is_capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return original(event, *args)

    return refuse


def main() -> None:
    run, out = sys.argv[1], Path(sys.argv[2])
    HERE.begin()
    torch.cuda.CUDAGraph = Graph  # type: ignore[misc, assignment]
    for name in ("record", "query"):
        setattr(testdev.Event, name, refusing(name))
    graph = Graph()

    def after_step(done: int) -> None:
        if done == CAPTURED:  # the next forward is captured
            graph.capture_begin()

    with ddptrace.trace(run):
        trained(HERE.name, ending_captures(graph), STEPS, after_step)
        HERE.synchronize()
    (out / f"told-{dist.get_rank()}.json").write_text(json.dumps({"captures": Graph.captures}))
    HERE.end()


def ending_captures(graph: Graph) -> Any:
    def wrap(model: torch.nn.Module) -> torch.nn.Module:
        model[-1].register_forward_hook(lambda *_: graph.capture_end())  # type: ignore[index]
        return WRAPPERS["stock"](model)

    return wrap


main()
