"""The wheel as users install it: a training node has torch and no HTA, a laptop analyzes without torch.

Both environments hold the wheel and, as links, the packages that it requires: nothing is downloaded, and torch is not
compiled anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
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
    """A fresh virtual environment with nothing in it but the wheel and what the wheel requires."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        venv.create(folder, symlinks=True)
        (self._packages,) = (folder / "lib").glob("python*/site-packages")

    def run(self, program: str, *arguments: object, cwd: Path) -> str:
        """Return the standard output of one of the environment's own programs. Fails the test where it fails."""
        return _done([self._bin / program, *arguments], cwd)

    def install(self, wheel: Path, extra: str = "") -> None:
        """Link the packages that the tests run with, then let pip check that they are all that the wheel requires."""
        for package in required(f"ddptrace{extra}"):
            link(package, self._packages)
        pip = [sys.executable, "-m", "pip", "--python", self._bin / "python", "install", "-q", "--no-index"]
        _done([*pip, f"{wheel}{extra}"], wheel.parent)

    def has(self, module: str, cwd: Path) -> bool:
        found = f"import importlib.util; print(importlib.util.find_spec({module!r}) is not None)"
        return self.run("python", "-c", found, cwd=cwd) == "True\n"


def _done(command: list[object], cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean | {"OMP_NUM_THREADS": "1"},
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def required(requirement: str) -> list[Distribution]:
    """Return the installed distributions that `requirement` needs, itself left out."""
    found: dict[str, Distribution] = {}
    todo = [Requirement(requirement)]
    while todo:
        one = todo.pop()
        if one.name in found:
            continue
        found[one.name] = distribution(one.name)
        todo += [
            more
            for more in map(Requirement, found[one.name].requires or [])
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in one.extras or {""})
        ]
    return list(found.values())[1:]


def link(package: Distribution, packages: Path) -> None:
    """Link the files of a distribution into a folder, one by one where other distributions share theirs."""
    for file in package.files or ():
        top, source = file.parts[0], Path(str(package.locate_file(file.parts[0])))
        if top in ("..", "__pycache__"):  # a program, or the compiled file of a module
            continue
        is_shared = source.is_dir() and source.suffix != ".dist-info" and not (source / "__init__.py").exists()
        target = packages / (file if is_shared else top)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(str(package.locate_file(file)) if is_shared else source)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
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
    torchrun = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    training_node.run(*torchrun, "train.py", "run", cwd=folder)
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
