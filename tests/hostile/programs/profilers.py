"""Profilers and observers of torch that the program runs itself."""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import (
    ExecutionTraceObserver,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import batch, ddp, join, keep_error, loss_of, network, sgd, steps, train

Trace = Callable[..., AbstractContextManager[Any]]

CPU = (ProfilerActivity.CPU,)
SWITCHES = ("prepare_trace", "start_trace", "_start_trace", "stop_trace", "__exit__", "_trace_ready")
GLOO_LEAVES_S = 0.3
"""torch 2.13 frees an execution trace observer without waiting for Gloo's thread, which is still in it for a moment
after `Work.wait()` has returned: that ends the process, with or without ddptrace."""
OPTIONS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")


def folder() -> Path:
    """For files of the program."""
    path = Path(os.environ["HOSTILE_FOLDER"]) / f"mine-{os.environ['RANK']}"
    path.mkdir(exist_ok=True)
    return path


def names_in(file: Path) -> list[tuple[str, int]]:
    """How often each operator and module of the program is in a profiler's file."""
    events = json.loads(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())[
        "traceEvents"
    ]
    names = [re.sub(r"_\d+$", "", event["name"]) for event in events if event.get("ph") == "X"]
    return sorted(Counter(name for name in names if name.startswith(("aten::", "nn.Module:", "mine"))).items())


def modules_in(file: Path) -> list[str]:
    """The names of the modules in a profiler's stacks, with their numbers."""
    return sorted(
        {
            event["name"]
            for event in json.loads(file.read_bytes())["traceEvents"]
            if event.get("name", "").startswith("nn.Module:")
        }
    )


@program()
def every_option() -> None:
    """Runs torch.profiler with each option alone, and with all."""
    for chosen in [*((option,) for option in OPTIONS), OPTIONS]:
        model = network()
        with profile(activities=CPU, **dict.fromkeys(chosen, True)) as profiler:
            train(model, None, 2)
        file = folder() / f"{'-'.join(chosen)}.json"
        profiler.export_chrome_trace(str(file))
        keep(chosen, names_in(file), modules_in(file))
        averages = profiler.key_averages(group_by_input_shape="record_shapes" in chosen, group_by_stack_n=5)
        keep(sorted((event.key, event.count) for event in averages if event.key.startswith("aten::")))
        if "with_stack" in chosen:
            profiler.export_stacks(str(folder() / "stacks"), "self_cpu_time_total")


@program()
def verbose_stacks() -> None:
    """Has stacks, shapes and Python functions recorded by an experimental configuration."""
    config = _ExperimentalConfig(verbose=True)
    model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Sequential(nn.Linear(8, 2))})

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.parts["second"](self.parts["first"](inputs))  # type: ignore[no-any-return]

    with profile(activities=CPU, with_stack=True, with_modules=True, experimental_config=config) as profiler:
        train(Named(), None, 2)
    file = folder() / "verbose.json"
    profiler.export_chrome_trace(str(file))
    keep(modules_in(file), names_in(file))
    modules = sorted(event.key for event in profiler.key_averages() if event.key.startswith("nn.Module"))
    keep(modules)


@program(ranks=2)
def on_a_schedule() -> None:
    """Runs torch.profiler on a schedule with a handler that exports, beside DDP."""
    ready: list[int] = []

    def handle(profiler: profile) -> None:
        file = folder() / f"{len(ready)}.json"
        profiler.export_chrome_trace(str(file))
        ready.append(profiler.step_num)
        keep(names_in(file))

    model = ddp()
    times = schedule(wait=1, warmup=1, active=1, repeat=2)
    with profile(activities=CPU, schedule=times, on_trace_ready=handle, with_stack=True) as profiler:
        for step in steps(model, None, 8):
            with record_function(f"mine {step}"):
                dist.all_reduce(torch.ones(3))
            profiler.step()
    keep(ready)
    with profile(activities=CPU, on_trace_ready=tensorboard_trace_handler(str(folder() / "board"))):
        train(model, None, 1)
    keep(len(list((folder() / "board").iterdir())))


@program()
def around_the_trace(trace: Trace) -> None:
    """Starts its profiler before the trace and stops it after, starts it inside and stops it after, and the reverse."""
    with profile(activities=CPU) as outer:
        with trace("inside"):
            train()
    keep(len(outer.key_averages()) > 0)
    inner = profile(activities=CPU)
    with trace("first"):
        train()
        inner.start()
        train()
    inner.stop()
    keep(len(inner.key_averages()) > 0)
    before = profile(activities=CPU)
    before.start()
    with trace("last"):
        train()
        before.stop()
        train()
    keep(len(before.key_averages()) > 0)


@program()
def older_profilers() -> None:
    """Runs the profilers of torch.autograd, and labels of its own in forwards."""
    for options in ({}, {"use_kineto": True}, {"record_shapes": True, "with_stack": True}):
        with torch.autograd.profiler.profile(**options) as profiler:
            train(None, None, 2)
        keep(sorted((event.key, event.count) for event in profiler.key_averages() if event.key.startswith("aten::")))
    keep(len(profiler.table()) > 0, profiler.total_average().key)

    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        @record_function("mine")
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with record_function("mine too"):
                return self.body(inputs)  # type: ignore[no-any-return]

    train(Labelled())
    with torch.autograd.profiler.record_function("mine alone") as handle:
        keep(handle.name)


@program()
def profiler_that_fails() -> None:
    """Raises in its profiler's handler, exports what was never recorded, and profiles nothing."""

    def refuse(profiler: profile) -> None:
        raise ValueError("in the handler")

    profiler = profile(activities=CPU, schedule=schedule(wait=0, warmup=1, active=1), on_trace_ready=refuse)
    profiler.start()
    train(None, None, 1)
    keep_error(profiler.step)
    train(None, None, 1)
    keep_error(profiler.step)  # it calls the handler; used any further, the profiler would end the process
    train()
    with profile(activities=CPU) as another:
        train()
    keep(len(another.key_averages()) > 0)
    keep_error(profile(activities=CPU).export_chrome_trace, "/nowhere/file")
    keep_error(profile, activities=[])


@program()
def profiled_in_a_thread() -> None:
    """Runs its profiler in a thread, while the main thread trains."""
    counts: list[bool] = []

    def work() -> None:
        with profile(activities=CPU) as profiler:
            model = models[0]
            model(data).sum().backward()
        counts.append(len(profiler.key_averages()) > 0)

    models, data = [network(), network()], torch.ones(4, 8)
    optimizer = sgd(models[1])
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        optimizer.zero_grad()
        models[1](data).sum().backward()
        optimizer.step()
    thread.join()
    keep(counts, *models)


@program(ranks=2)
def execution_trace() -> None:
    """Observes the execution trace, alone and with its profiler."""
    file = folder() / "execution.json"
    observer = ExecutionTraceObserver().register_callback(str(file))
    model = ddp()
    optimizer = sgd(model)
    observer.start()
    for _ in steps(model, optimizer, 2):
        pass
    time.sleep(GLOO_LEAVES_S)
    observer.stop()
    observer.unregister_callback()
    names = Counter(node["name"] for node in json.loads(file.read_text())["nodes"])
    keep(sorted((name, count) for name, count in names.items() if name.startswith(("aten::", "c10d::"))))
    second = ExecutionTraceObserver().register_callback(str(folder() / "second.json"))
    with profile(activities=CPU, execution_trace_observer=second):
        train(model, optimizer, 2)
        time.sleep(GLOO_LEAVES_S)
    keep((folder() / "second.json").exists())


@program()
def memory_history() -> None:
    """Records the history of memory, which a build for the CPU refuses in its own words."""
    keep_error(torch.cuda.memory._record_memory_history)
    keep_error(torch.cuda.memory._record_memory_history, enabled=None)
    keep_error(torch.cuda.memory._snapshot)
    keep_error(torch.cuda.memory._dump_snapshot, str(folder() / "snapshot"))
    with profile(activities=CPU, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        train(None, None, 2)
    keep_error(profiler.export_memory_timeline, str(folder() / "memory.json"), "cpu")
    keep(torch.cuda.is_available(), torch.cuda.is_initialized())
    keep_error(torch.cuda.current_device)


@program()
def its_own_metadata() -> None:
    """Adds metadata to its profiler, presets some, and switches collection off and on."""
    with profile(activities=CPU) as profiler:
        profiler.add_metadata("mine", "value")
        profiler.add_metadata_json("json", json.dumps({"a": 1}))
        profiler.preset_metadata_json("preset", "2")
        train(None, None, 1)
        keep_error(profiler.toggle_collection_dynamic, False, CPU)
        train(None, None, 1)
        keep_error(profiler.toggle_collection_dynamic, True, CPU)
    file = folder() / "metadata.json"
    profiler.export_chrome_trace(str(file))
    content = json.loads(file.read_text())
    keep(content["mine"], content["json"], sorted(content.keys() & {"distributedInfo", "preset"}))


@program(ranks=2)
def what_torch_logs_of_ddp() -> None:
    """Reads what DDP logs of itself, and what torch counts of collectives."""
    model = ddp()
    train(model, None, 12)
    logged = model._get_ddp_logging_data()
    names = ("world_size", "module_name", "has_rebuilt_buckets", "rebuilt_bucket_sizes", "bucket_sizes", "comm_hook")
    keep([(name, logged.get(name)) for name in names])
    join()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    other = ddp()
    train(other, None, 3)
    keep(dist.get_debug_level())


@program()
def benchmarks() -> None:
    """Measures itself by torch's timer and by torch.utils.bottleneck's tools."""
    from torch.utils.benchmark import Timer
    from torch.utils.flop_counter import FlopCounterMode

    model = network()
    measured = Timer("model(batch())", globals={"model": model, "batch": batch}).timeit(3)
    keep(measured.number_per_run)
    torch.manual_seed(1)
    with FlopCounterMode(display=False) as counter:
        loss_of(model).backward()
    keep(counter.get_total_flops(), sorted(counter.get_flop_counts()))
    time.sleep(0)
    train(model)


@program()
def steps_said_anywhere(trace: Trace) -> None:
    """Says that a step is over within backwards and forwards, and from several threads at once."""
    with trace() as tracing:
        say: Callable[..., None] = getattr(tracing, "step", lambda: None)
        model = network()
        model[0].weight.register_hook(lambda _: say())  # type: ignore[union-attr]
        train(model)
        model.register_forward_hook(lambda *_: say())
        train(model)
        threads = [threading.Thread(target=lambda: [say() for _ in range(50)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        train()
        for thread in threads:
            thread.join()


@program()
def interrupted_as_windows_switch() -> None:
    """Is interrupted in each function of torch that starts or stops a profiler, catches that and trains on."""
    model = network()
    optimizer = sgd(model)

    def interrupt(wanted: str, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == wanted and "profiler" in frame.f_code.co_filename:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    for wanted in SWITCHES:
        sys.setprofile(functools.partial(interrupt, wanted))
        for _ in range(8):
            with contextlib.suppress(KeyboardInterrupt):
                model(torch.ones(2, 8)).sum().backward()
                optimizer.step()
        sys.setprofile(None)
    train()


@program()
def traced_in_a_thread(trace: Trace) -> None:
    """Traces in threads, which profile themselves after that and end."""

    def work(run: str) -> None:
        with trace(run):
            train(None, None, 2)
        with profile(activities=CPU) as profiler:
            train(None, None, 1)
        keep(len(profiler.key_averages()) > 0)

    for number in range(2):
        thread = threading.Thread(target=work, args=(f"thread-{number}",))
        thread.start()
        thread.join()
    train()
