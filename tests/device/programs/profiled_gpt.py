"""Trains a GPT under torch.profiler: `profiled_gpt.py OUT`.

Leaves `trace.json`, and in `told.json` what torch itself tells of the device's work, and how long kernels of known
length took between two events each.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile

from tests.device.device import HERE
from tests.device.programs.gpt import LARGE, TINY, model_of, stepping

STEPS, SPANS = 3, 20
SPENT_NS = 2_000_000


def main() -> None:
    out, size = Path(sys.argv[1]), LARGE if HERE.is_gpu else TINY
    HERE.begin()
    model = model_of(size, HERE.name)
    step = stepping(model, size, HERE.name)
    step()
    HERE.spend(SPENT_NS)
    HERE.synchronize()
    with profile(activities=HERE.activities) as profiler:
        for _ in range(STEPS):
            step()
        spans = [between_events() for _ in range(SPANS)]
        HERE.synchronize()
    profiler.export_chrome_trace(str(out / "trace.json"))
    told = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "spans_ms": [begin.elapsed_time(end) for begin, end in spans],
        "by_name": by_name(profiler),
    }
    (out / "told.json").write_text(json.dumps(told))
    HERE.end()


def between_events() -> tuple[Any, Any]:
    begin, end = (HERE.module.Event(enable_timing=True) for _ in range(2))
    begin.record()
    HERE.spend(SPENT_NS)
    end.record()
    return begin, end


def by_name(profiler: Any) -> dict[str, tuple[int, float]]:
    """Return how often each kernel and copy ran, and for how many us, as `profiler.events()` has it."""
    kind = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]
    found: defaultdict[str, list[float]] = defaultdict(list)
    for event in profiler.events():
        if event.device_type != kind and not getattr(event, "is_user_annotation", False):
            found[event.name].append(event.time_range.elapsed_us())
    return {name: (len(lengths), sum(lengths)) for name, lengths in found.items()}


main()
