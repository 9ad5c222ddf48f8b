"""The wheel as users install it: a training node has torch and no HTA, a laptop analyzes without torch.

Both environments are made from nothing, so the package index has to be within reach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 600
STEPS = 6

TRAIN = f"""
import sys
import torch, torch.distributed as dist
import ddptrace

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
window = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1)
with ddptrace.trace(sys.argv[1], profile=window):
    for _ in range({STEPS}):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


class Environment:
    """A fresh virtual environment with nothing of the tests' own in it."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        venv.create(folder, with_pip=True)

    def run(self, program: str, *arguments: object, cwd: Path, timeout_s: float = INSTALL_TIMEOUT_S) -> str:
        """Standard output of one of the environment's own programs. Fails the test where it fails."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        done = subprocess.run(
            [self._bin / program, *map(str, arguments)],
            cwd=cwd,
            env=clean | {"OMP_NUM_THREADS": "1"},
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, wheel: Path, extra: str = "") -> None:
        constrained = ("-q", "--no-compile", "-c", ROOT / "constraints.txt")  # most of it is never imported
        self.run("python", "-m", "pip", "install", *constrained, f"{wheel}{extra}", cwd=wheel.parent)

    def has(self, module: str, cwd: Path) -> bool:
        found = f"import importlib.util; print(importlib.util.find_spec({module!r}) is not None)"
        return self.run("python", "-c", found, cwd=cwd) == "True\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("ddptrace-*.whl")
    return built


@pytest.fixture(scope="module")
def training_node(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    node = Environment(tmp_path_factory.mktemp("training-node"))
    node.install(wheel, "[torch]")
    return node


@pytest.fixture(scope="module")
def laptop(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    laptop = Environment(tmp_path_factory.mktemp("laptop"))
    laptop.install(wheel)
    return laptop


@pytest.fixture(scope="module")
def recorded(training_node: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, recorded on the training node."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(TRAIN)
    training_node.run("torchrun", "--standalone", "--nproc-per-node", 2, "train.py", "run", cwd=folder, timeout_s=120)
    return folder / "run"


def test_a_training_node_records_with_torch_and_without_hta(
    training_node: Environment, recorded: Path, tmp_path: Path
) -> None:
    assert training_node.has("torch", tmp_path)
    assert not training_node.has("hta", tmp_path)
    assert not training_node.has("pandas", tmp_path)
    assert sorted(path.name for path in recorded.iterdir()) == ["manifest.json", "rank-00000", "rank-00001"]


def test_a_laptop_analyzes_without_torch(laptop: Environment, recorded: Path, tmp_path: Path) -> None:
    # GIVEN an environment of the base dependencies alone
    assert not laptop.has("torch", tmp_path)
    # WHEN it analyzes what the training node recorded
    told = json.loads(laptop.run("ddptrace", "analyze", recorded, "--json", cwd=tmp_path))
    # THEN every rank and step is there, communication was seen by the backend itself, and the files are written
    assert {(row["rank"], row["step"]) for row in told["steps"]} == {(r, s) for r in (0, 1) for s in range(STEPS)}
    assert "backend" in {row["evidence"] for row in told["buckets"]}
    written = {path.name for path in (recorded / "analysis").iterdir()}
    assert written >= {"analysis.json", "trace.json.gz", "report.html"}


def test_a_laptop_that_wants_to_record_is_told_to_install_torch(laptop: Environment, tmp_path: Path) -> None:
    program = """
import ddptrace
try:
    ddptrace.trace("run").__enter__()
except ddptrace.DdptraceError as error:
    print(error)
"""
    assert "pip install 'ddptrace[torch]'" in laptop.run("python", "-c", program, cwd=tmp_path)
