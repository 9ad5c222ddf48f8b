"""Windows of `profile=` take every option of torch.profiler, and what they record is read as without them."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile, schedule

import ddptrace
from ddptrace.load.run import read_run
from tests.launch import PROGRAMS, environment

OPTIONS: dict[str, Any] = {
    "record_shapes": True,
    "with_stack": True,
    "with_modules": True,
    "profile_memory": True,
    "with_flops": True,
    "experimental_config": torch._C._profiler._ExperimentalConfig(verbose=True),
}


def train(steps: int = 8) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()


def steps_2_and_3() -> Any:
    return schedule(wait=1, warmup=1, active=2, repeat=1)


def windows(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "rank-00000").glob("kineto*"))


def events(run: Path) -> list[dict[str, Any]]:
    [file] = windows(run)
    with gzip.open(run / "rank-00000" / file) as packed:
        found: list[dict[str, Any]] = json.load(packed)["traceEvents"]
    return found


def test_a_window_has_what_the_options_of_torch_ask_for(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run", profile=profile(schedule=steps_2_and_3(), **OPTIONS)):
        train()
    found = events(tmp_path / "run")
    modules = [event["name"] for event in found if event["name"].startswith("nn.Module")]
    assert sorted(modules) == ["nn.Module: Linear_0"] * 2 + ["nn.Module: ReLU_0"] * 2 + ["nn.Module: Sequential_0"] * 2
    assert any("Input Dims" in event.get("args", {}) for event in found if event["name"] == "aten::addmm")
    assert any(event["name"] == "[memory]" for event in found)


def test_steps_and_their_compute_are_found_with_all_options(tmp_path: Path) -> None:
    with ddptrace.trace(tmp_path / "run", profile=profile(schedule=steps_2_and_3(), **OPTIONS)):
        train()
    steps = [step for step in ddptrace.analyze(tmp_path / "run").steps if step.profiled]
    assert len(steps) == 2
    assert all(step.compute_ns and step.evidence is None for step in steps)
    assert not {finding.code for finding in read_run(tmp_path / "run").findings} & {"surface-failed", "patch-kept"}


@pytest.mark.parametrize("exports", [True, False])
def test_the_handler_of_a_given_profiler_is_called_first_and_its_file_is_kept(tmp_path: Path, exports: bool) -> None:
    """torch saves a window only once."""
    seen: list[int] = []

    def handler(window: profile) -> None:
        seen.append(len(window.key_averages()))
        if exports:
            window.export_chrome_trace(str(tmp_path / "theirs.json"))

    with ddptrace.trace(tmp_path / "run", profile=profile(schedule=steps_2_and_3(), on_trace_ready=handler)):
        train()
    assert len(seen) == 1
    assert seen[0]
    assert (tmp_path / "theirs.json").exists() is exports
    assert windows(tmp_path / "run") == ["kineto-0.json.gz"]
    assert sum(bool(step.profiled) for step in ddptrace.analyze(tmp_path / "run").steps) == 2


def test_a_handler_that_raises_ends_the_windows_and_not_the_training(tmp_path: Path) -> None:
    def handler(window: profile) -> None:
        raise KeyError("theirs")

    with pytest.warns(RuntimeWarning, match="stopped watching profiler: KeyError: 'theirs'"):
        with ddptrace.trace(tmp_path / "run", profile=profile(schedule=steps_2_and_3(), on_trace_ready=handler)):
            train()
    assert len(read_run(tmp_path / "run").ranks[0].steps) == 8


def test_a_profiler_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ddptrace.TraceStateError, match="without a schedule"):
        ddptrace.trace(tmp_path / "run", profile=profile())
    used = profile(schedule=steps_2_and_3())
    used.start()
    used.step()
    used.stop()
    with pytest.raises(ddptrace.TraceStateError, match="already been started"):
        ddptrace.trace(tmp_path / "run", profile=used)
    with pytest.raises(ddptrace.TraceStateError, match="not a schedule"):
        ddptrace.trace(tmp_path / "run", profile=3)  # type: ignore[arg-type]


def test_the_launcher_takes_the_options_by_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from tests.integration.test_profiler_options import train\ntrain()\n")
    command = [sys.executable, "-m", "ddptrace.run", "--out", "run", "--profile", "1,1,2,with_stack,record_shapes"]
    subprocess.run([*command, "train.py"], cwd=tmp_path, env=environment(), check=True, capture_output=True)
    found = events(tmp_path / "run")
    assert any(event["name"] == "nn.Module: Linear_0" for event in found)
    assert any("Input Dims" in event.get("args", {}) for event in found)


def test_the_launcher_names_the_options_that_there_are(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ddptrace.run", "--profile", "1,1,2,with_stacks", str(PROGRAMS / "ddp.py")]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert "with_stack, with_modules" in done.stderr


OTHER_THREADS_TRAIN = """
import threading, ddptrace
from torch.profiler import schedule
from tests.integration.test_profiler_options import train
with ddptrace.trace("run", profile=schedule(wait={wait}, warmup=0, active=2)):
    threads = [threading.Thread(target=train, args=(7,)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(("wait", "windows_saved"), [(0, 1), (1, 6), (2, 4)])
def test_threads_that_train_and_end_in_a_window_do_not_end_the_process(
    tmp_path: Path, wait: int, windows_saved: int
) -> None:
    """torch's profiler ends the process where a window's thread ends before it, and where another one ends it. With
    `wait=0` the window is that of the thread which entered the trace."""
    program = OTHER_THREADS_TRAIN.format(wait=wait)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment(), check=True)
    assert len(windows(tmp_path / "run")) == windows_saved
