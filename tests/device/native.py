"""The compiled part of the test device: compiled once for its sources and a torch, and kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Final

import torch

from ddptrace.capture.collectives.compiled import COMPILERS, make_cache_folder

HERE: Final = Path(__file__).resolve().parent
UNITS: Final = ("dist", "ops", "runtime", "profiler")  # what takes longest first
MODULE: Final = "testdev_native"
PYTHON_HEADERS: Final = Path(sysconfig.get_path("include"))
OPTIONS: Final = ("-std=c++20", "-O1", "-fPIC", "-Wall", "-DUSE_KINETO", "-DUSE_DISTRIBUTED", "-DUSE_C10D")


def compiler() -> str | None:
    """Return the compiler; None where there is none, or where Python's headers are missing."""
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    return found if (PYTHON_HEADERS / "Python.h").is_file() else None


def load() -> ModuleType:
    """Load the compiled module, and compile it where nobody has yet."""
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(compiled()))
    spec = importlib.util.spec_from_loader(MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def compiled() -> Path:
    """Return the path of the library. One process compiles, and others wait for it."""
    folder = make_cache_folder()
    path = folder / f"{MODULE}-{_hash()}.so"
    with (folder / f"{MODULE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _compile(Path(scratch)).replace(path)
    return path


def _hash() -> str:
    sources = [path.read_text() for path in sorted((*HERE.glob("*.cpp"), *HERE.glob("*.h")))]
    made_of = (sources, OPTIONS, torch.__version__, torch.version.git_version, sysconfig.get_config_var("SOABI"))
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]


def _compile(scratch: Path) -> Path:
    """Compile all units side by side, and link them."""
    command = compiler()
    assert command is not None, "no C++ compiler, or no Python.h"
    include = Path(torch.__file__).parent / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include", include / "kineto", PYTHON_HEADERS)
    options = [*OPTIONS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    options += [word for folder in folders for word in ("-isystem", str(folder))]
    compiling = [
        subprocess.Popen([command, *options, "-c", str(HERE / f"{unit}.cpp"), "-o", str(scratch / f"{unit}.o")])
        for unit in UNITS
    ]
    statuses = [one.wait() for one in compiling]
    assert not any(statuses), "the test device does not compile: see above"
    made = scratch / "made.so"
    objects = [str(scratch / f"{unit}.o") for unit in UNITS]
    libraries = [f"-L{include.parent / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
    subprocess.run([command, "-shared", "-o", str(made), *objects, *libraries], check=True)
    return made
