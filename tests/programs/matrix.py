"""Every cell of the matrix five times over: counted by a dispatch mode, profiled by torch alone, then recorded by each
surface. `matrix.py FOLDER`, four ranks. What a rank did and found is in FOLDER/said-RANK.json."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

import ddptrace
from tests.programs.leaving import leave
from tests.programs.matrix_cells import Cell, cells
from tests.programs.matrix_models import models
from tests.programs.matrix_operations import Place
from tests.programs.matrix_special import special
from tests.programs.matrix_witness import Counting

Around = Callable[[], AbstractContextManager[Any]]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder.mkdir(exist_ok=True)
    rank, places = dist.get_rank(), groups()
    world, pair = places["world"], places["pair"]
    matrix = [*cells(places), *special(world, pair), *models(world)]
    said: dict[str, Any] = {"cells": [cell.to_dict() for cell in matrix], "counted": [], "outcomes": {}}
    for cell in matrix:
        cell.prepare()
    said["outcomes"]["counted"] = counted(matrix, said["counted"])
    all_threads = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=all_threads) as profiler:
        said["outcomes"]["profiled"] = [carry_out(cell, number) for number, cell in enumerate(matrix)]
    profiler.export_chrome_trace(str(folder / f"witness-{rank}.json"))
    said["outcomes"]["tap"] = traced(folder / "tap", matrix)
    always = torch.profiler.schedule(wait=0, warmup=1, active=100_000)
    said["outcomes"]["window"] = traced(folder / "window", matrix, profile=always)
    without_the_tap()
    said["outcomes"]["fallback"] = traced(folder / "fallback", matrix)
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
    leave()


def groups() -> dict[str, Place]:
    """Four ranks in two pairs; three of them, and two of these three."""
    ranks = {"world": [0, 1, 2, 3], "pair": [0, 1], "other pair": [2, 3], "three": [0, 1, 2], "two of three": [0, 2]}
    made = {name: dist.new_group(members) for name, members in ranks.items() if name != "world"}
    made["world"] = dist.group.WORLD
    mine = {name: Place.of(made[name], members) for name, members in ranks.items() if dist.get_rank() in members}
    mine["pair"] = mine.pop("other pair", mine.get("pair"))
    return mine


def counted(matrix: list[Cell], found: list[Any]) -> list[Any]:
    """`found` takes what the dispatch mode saw of each cell."""
    outcomes = []
    for number, cell in enumerate(matrix):
        counting = Counting()
        outcomes.append(carry_out(cell, number, nullcontext if cell.alone else lambda c=counting: c))  # type: ignore[misc]
        found.append(None if cell.alone else counting.seen)
    return outcomes


def traced(folder: Path, matrix: list[Cell], **options: Any) -> list[Any]:
    """Each cell is a step."""
    outcomes = []
    with ddptrace.trace(folder, **options) as trace:
        for number, cell in enumerate(matrix):
            outcomes.append(carry_out(cell, number))
            trace.step()
    return outcomes


def carry_out(cell: Cell, number: int, around: Around = nullcontext) -> Any:
    """What came of it: the values of its tensors or what it was refused with, and the thread that did it."""
    torch.manual_seed(number)
    outcome: list[Any] = []

    def act() -> None:
        try:
            with around():
                values = [tensor.detach().double().abs().sum().item() for tensor in cell.run() if tensor.numel()]
            outcome.extend([values, None])
        except Exception as error:
            outcome.extend([[], f"{type(error).__name__}: {error}".splitlines()[0]])
        outcome.append(threading.get_native_id())

    with record_function(f"cell {number}"):
        if cell.in_thread:
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()
        else:
            act()
    return outcome


def without_the_tap() -> None:
    """From now on torch's private names count as moved."""
    from ddptrace.capture.collectives import tap

    def moved() -> None:
        raise AttributeError("a private name has moved")

    tap.install = moved  # type: ignore[assignment]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
