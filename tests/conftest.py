"""Finds what tests need besides Python packages, and skips or fails tests whose part is missing.

A test whose part is missing is skipped with the reason; one line at the end sums up what is missing and how to get it.
With DDPTRACE_REQUIRE_ALL=1 (as `.ci/run` sets it) the test fails instead, so that nothing goes unchecked in silence.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.launch import torchrun

Record = Callable[..., Path]

settings.register_profile("unhurried", deadline=None)  # how long one example takes is the machine's affair
settings.load_profile("unhurried")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
REQUIRE_ALL = os.environ.get("DDPTRACE_REQUIRE_ALL", "") not in ("", "0")
NEEDS = "needs "
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def need(present: object, part: str) -> None:
    """Skip the test unless `present` is true; fail it where all parts are required.

    `part` names what is missing and, in brackets, how to get it.
    """
    if present:
        return
    if REQUIRE_ALL:
        pytest.fail(f"DDPTRACE_REQUIRE_ALL is set and this is missing: {part}", pytrace=False)
    pytest.skip(f"{NEEDS}{part}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Sum up the missing parts in one line, the last."""
    yield
    terminalreporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminalreporter is None or hasattr(session.config, "workerinput"):
        return
    reasons = (
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    missing = Counter(reason.removeprefix(NEEDS) for reason in reasons if reason.startswith(NEEDS))
    missing = _with_the_runs_before(missing)
    if missing:
        told = "; ".join(f"{tests} for {part}" for part, tests in missing.most_common())
        terminalreporter.write_line(f"Tests skipped because a part is missing: {told}")


def _with_the_runs_before(missing: Counter[str]) -> Counter[str]:
    """Add what earlier runs of the same `make test` missed, which a file passes on: the last line then tells all."""
    passed_on = os.environ.get("DDPTRACE_MISSING")
    if passed_on is None:
        return missing
    file = Path(passed_on)
    if file.exists():
        missing = missing + Counter(json.loads(file.read_text()))
    file.write_text(json.dumps(missing))
    return missing


def pytest_configure() -> None:
    """Collect no garbage until all tests are imported. What `ddptrace compile` made for the user is not what is tested,
    where a test does not ask for it."""
    gc.disable()
    os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"ddptrace-tests-cache-{os.getuid()}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A GPU is never required: most machines have none. Nor is a machine that does nothing else."""
    for item in items:
        if item.get_closest_marker("gpu") and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("quiet") and "DDPTRACE_ACCEPTANCE" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="for a quiet machine: make acceptance"))


def pytest_collection_finish() -> None:
    """Spare every later garbage collection the walk through what importing all tests has made: it takes 0.3 s."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces with `expected.json`: $DDPTRACE_TRACES, or `shared/traces` beside the project."""
    folder = Path(os.environ.get("DDPTRACE_TRACES", SHARED / "traces"))
    need(
        (folder / "expected.json").is_file(),
        f"the real traces in {folder} (set DDPTRACE_TRACES to the folder that holds them)",
    )
    return folder


@pytest.fixture(scope="session")
def shared_dumps() -> Path:
    """The folder of real dumps of the Flight Recorder, a folder for each job with `fault_injection.log`:
    $DDPTRACE_FLIGHT_RECORDER, or `shared/flight-recorder` beside the project."""
    folder = Path(os.environ.get("DDPTRACE_FLIGHT_RECORDER", SHARED / "flight-recorder"))
    need(
        next(folder.glob("*/fault_injection.log"), None),
        f"the real dumps in {folder} (set DDPTRACE_FLIGHT_RECORDER to the folder that holds them)",
    )
    return folder


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Call `record(run, program, *arguments)` where many tests read the same training.

    It leaves in `run` what `torchrun(program, run, *arguments)` leaves, but the training runs once for all processes of
    the tests, and each caller gets a copy.
    """
    base = tmp_path_factory.getbasetemp()
    store = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "recorded-runs"
    store.mkdir(exist_ok=True)

    def copy(run: Path, program: str, *arguments: object) -> Path:
        kept = store / re.sub(r"\W+", "-", " ".join(map(str, (program, *arguments))))
        with kept.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                torchrun(program, kept.with_suffix(".begun"), *arguments)
                kept.with_suffix(".begun").rename(kept)
        return Path(shutil.copytree(kept, run))

    return copy


@pytest.fixture(scope="session")
def compiled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as `ddptrace compile` leaves it, for XDG_CACHE_HOME; compiled once for all processes of the tests."""
    from ddptrace.capture.collectives.compiled import COMPILERS, library_path

    need(any(map(shutil.which, COMPILERS)), "a C++ compiler (apt-get install g++)")
    cache = tmp_path_factory.getbasetemp().parent / "compiled-cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    with (cache / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        if library_path() is None:
            subprocess.run([sys.executable, "-m", "ddptrace", "compile"], check=True)
    return cache


@pytest.fixture(scope="session")
def hosts_tool() -> Path:
    """The command that makes hosts with a network of their own and a set link rate: `hosts up N RATE`."""
    command = SHARED / "tools" / "hosts" / "hosts"
    need(
        os.access(command, os.X_OK) and os.geteuid() == 0 and shutil.which("ip"),
        f"{command}, root and iproute2 (apt-get install iproute2)",
    )
    return command


@pytest.fixture(scope="session")
def chromium() -> str:
    """A Chromium that can run headless."""
    found = next(filter(None, map(shutil.which, BROWSERS)), "")
    need(found, "chromium (apt-get install chromium)")
    return found
