"""A DDP training in which everything that has a name is named to harm whoever shows it. `hostile_names.py RUN NAME`.

NAME is the text, as JSON. Modules, parameters, a process group, a thread, the file and the function that call a
collective, a communication hook, an optimizer, profiler ranges, the host and the exception that ends it are called so,
each with a mark of its own in front.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

STEPS = 9
WIDTH = 64


def called(kind: str, name: str) -> str:
    return f"{kind} {name}"


def in_odd_file(name: str) -> Callable[..., Any]:
    """A function whose name and whose file's name are hostile, which reduces."""
    source = "import torch.distributed as dist\ndef reduce(tensor, group):\n    dist.all_reduce(tensor, group=group)\n"
    scope: dict[str, Any] = {}
    exec(compile(source, f"/tmp/{called('file', name)}.py".replace("\0", "_"), "exec"), scope)
    reduce: Callable[..., Any] = scope["reduce"]
    code = reduce.__code__
    reduce.__code__ = code.replace(co_name=called("function", name), co_qualname=called("function", name))
    return reduce


class Net(nn.Module):
    """torch wants names without a dot."""

    def __init__(self, name: str) -> None:
        super().__init__()
        module = nn.Linear(WIDTH, WIDTH)
        module.register_parameter(called("parameter", name), nn.Parameter(torch.ones(WIDTH)))
        self.names = called("module", name), called("parameter", name)
        self.add_module(self.names[0], module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        module = getattr(self, self.names[0])
        with torch.profiler.record_function(self.names[0]):
            out: torch.Tensor = module(x) * getattr(module, self.names[1])
        return out


def train(name: str, group: dist.ProcessGroup) -> None:
    model = DistributedDataParallel(Net(name.replace(".", "_")), bucket_cap_mb=0.01)
    optimizer = type(called("optimizer", name), (torch.optim.SGD,), {})(model.parameters(), lr=0.01)
    reduce = in_odd_file(name)
    for _ in range(STEPS):
        model(torch.randn(4, WIDTH)).pow(2).mean().backward()
        thread = threading.Thread(target=reduce, args=(torch.ones(4), group), name=called("thread", name))
        thread.start()
        thread.join()
        reduce(torch.ones(2), None)
        optimizer.step()
        optimizer.zero_grad()


def main(run: str, name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    host = called("host", name)
    socket.gethostname = lambda: host  # what the system takes for one holds 64 signs
    os.environ["TORCHELASTIC_RUN_ID"] = called("job", name).replace("\0", "_").encode(errors="replace").decode()
    dist.init_process_group("gloo")
    group = dist.new_group([0, 1], group_desc=called("group", name).encode(errors="replace").decode())
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    try:
        with ddptrace.trace(run, profile=schedule):
            train(name, group)
            raise type(called("error", name), (RuntimeError,), {})(called("exception", name))
    except RuntimeError:
        leave()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
