"""What a Python frame means for a collective issued below it: it is the program's, a library's, or a part of torch or
ddptrace that issues it for the program. Found by file and qualified name: if torch moves a function, its frames are
skipped and the collective counts as the program's own."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch

from ddptrace.capture.origins import libraries
from ddptrace.capture.origins.libraries import INSTALLED
from ddptrace.schema import Origin

SKIPPED, SITE, ISSUER, MODULE, ENGINE, LIBRARY, PASSING = range(7)
"""Kinds of frames: skipped; of the program; of a function with an origin; of a call of an nn.Module; of the entry into
the autograd engine; of a library; of a library's function that only passes on what its callers want."""

ENCLOSING: Final = (Origin.CONSTRUCTION, Origin.CHECKPOINT)
"""These origins hold for everything that is called inside, whatever issues a collective there."""


@dataclass(slots=True)
class Frame:
    """What all frames of one code object have in common."""

    code: CodeType  # kept alive: it is known by its id
    kind: int
    origin: Origin = Origin.PROGRAM
    local: str = ""  # local variable that holds the module, or what holds it; of a library's frame, parameters
    holds: str = ""  # attribute of that with the module or a tuple of them; empty: it is the module itself
    sites: dict[int, int] = field(default_factory=dict)  # by instruction: string id of the call site
    through: dict[tuple[int, int], int] = field(default_factory=dict)  # by call site and instruction: of both lines
    encloses: bool = field(init=False)  # its origin is one of ENCLOSING

    def __post_init__(self) -> None:
        self.encloses = self.origin in ENCLOSING


DDP = "torch/nn/parallel/distributed.py", "DistributedDataParallel."
WRAPPER = "ddptrace/reducer/data_parallel.py", "BucketedDataParallel."

FUNCTIONS: Final = {
    (DDP[0], DDP[1] + "__init__"): Origin.CONSTRUCTION,
    (DDP[0], DDP[1] + "_pre_forward"): Origin.REBUILD,  # the reducer's C++ is called right here
    (DDP[0], DDP[1] + "_sync_module_buffers"): Origin.BUFFERS,
    (DDP[0], DDP[1] + "_find_common_rank"): Origin.AGREEMENT,
    (DDP[0], DDP[1] + "_check_global_requires_backward_grad_sync"): Origin.AGREEMENT,
    (DDP[0], DDP[1] + "_delayed_all_reduce_hook"): Origin.GRADIENTS,
    (DDP[0], DDP[1] + "_match_all_reduce_for_bwd_pass"): Origin.GRADIENTS,
    (DDP[0], DDP[1] + "_match_unused_params_allreduce"): Origin.UNUSED_PARAMETERS,
    (DDP[0], DDP[1] + "_sync_final_model"): Origin.CONSTRUCTION,
    (DDP[0], "_DDPJoinHook.main_hook"): Origin.REBUILD,
    (WRAPPER[0], WRAPPER[1] + "__init__"): Origin.CONSTRUCTION,
    (WRAPPER[0], WRAPPER[1] + "_before_forward"): Origin.BUFFERS,
    ("ddptrace/reducer/same_model.py", "order_of_first"): Origin.REBUILD,
    ("ddptrace/reducer/sender.py", "Sender.send"): Origin.GRADIENTS,
}
FILES: Final = (
    ("ddptrace/reducer/same_step.py", Origin.AGREEMENT),
    ("ddptrace/reducer/layer_drop.py", Origin.AGREEMENT),
    ("ddptrace/reducer/unused.py", Origin.UNUSED_PARAMETERS),
    ("torch/distributed/algorithms/join.py", Origin.AGREEMENT),
    ("torch/distributed/algorithms/ddp_comm_hooks/", Origin.HOOK),
    ("torch/distributed/algorithms/model_averaging/", Origin.OPTIMIZER),
    ("torch/distributed/optim/", Origin.OPTIMIZER),
    ("torch/distributed/checkpoint/", Origin.CHECKPOINT),
    ("torch/distributed/pipelining/", Origin.PIPELINE),
    ("torch/distributed/fsdp/_init_utils.py", Origin.CONSTRUCTION),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_init.py", Origin.CONSTRUCTION),
    ("torch/distributed/fsdp/", Origin.FSDP),
    ("torch/distributed/tensor/", Origin.DTENSOR),
)
"""By file or folder, the first that fits."""

HOLDERS: Final = {
    ("torch/nn/modules/module.py", "Module._wrapped_call_impl"): ("self", ""),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", "FSDPParamGroup.unshard"): ("self", "modules"),
    ("torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py", "FSDPParamGroup.post_backward"): ("self", "modules"),
    ("torch/distributed/fsdp/_flat_param.py", "FlatParamHandle.unshard"): ("self", "_fully_sharded_module"),
    ("torch/distributed/fsdp/_runtime_utils.py", "_reduce_grad"): ("handle", "_fully_sharded_module"),
}
"""Which local variable of a function holds the module that it works for."""

ENTRY: Final = "torch/autograd/graph.py", "_engine_run_backward"

GENERATED: Final = ("<frozen ", "<eval_with_key>", "<@beartype(", "<decorator-gen-")
"""Names of files begin so where Python, torch or a decorator made the code."""

DEPRECATIONS: Final = "typing_extensions.py"
"""Its `deprecated` wraps functions of torch, and so stands between the program and torch."""

_PACKAGES: Final = (Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[2])
_STANDARD: Final = Path(os.__file__).resolve().parent


def describe(code: CodeType) -> Frame:
    own, is_nobodys = _owner(code.co_filename)
    if own is None:
        return Frame(code, SKIPPED) if is_nobodys else _of_library(code) or Frame(code, SITE)
    name = own, code.co_qualname
    local, holds = HOLDERS.get(name, ("", ""))
    if name == ENTRY:
        return Frame(code, ENGINE)
    origin = FUNCTIONS.get(name) or next((origin for start, origin in FILES if own.startswith(start)), None)
    if origin is None:
        return Frame(code, MODULE if local else SKIPPED, Origin.PROGRAM, local, holds)
    return Frame(code, ISSUER, origin, local, holds)


def _of_library(code: CodeType) -> Frame | None:
    """Describe a library's code; None if it is the program's own."""
    file = libraries.file_of(_resolved(code.co_filename))
    if file is None:
        return None
    name = f"{file}:{code.co_qualname}"
    origin = next((origin for start, origin in libraries.ORIGINS if name.startswith(start)), Origin.PROGRAM)
    held = (variable for start, *variable in libraries.PARAMETERS if name.startswith(start))
    local, holds = next(held, ("", ""))
    return Frame(code, PASSING if name.startswith(libraries.PASSING) else LIBRARY, origin, local, holds)


def program_line(frame: FrameType | None) -> str:
    """Return the innermost line of the program on a stack; failing that of a library, failing that ""."""
    library = ""
    while frame is not None:
        kind = describe(frame.f_code).kind
        if kind == SITE:
            return site(frame.f_code, frame.f_lineno)
        if kind >= LIBRARY:
            library = library or site(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return library


def site(code: CodeType, line: int | None) -> str:
    """Return a line as in "train.py:42 in train_step", with the file relative to where Python would import it from."""
    return f"{_imported_as(code.co_filename)}:{line} in {code.co_qualname.rpartition('<locals>.')[2]}"


@functools.lru_cache(maxsize=4096)
def _owner(name: str) -> tuple[str | None, bool]:
    """Return the path of a file of torch or ddptrace, from the package's name on, else None; and whether the code is of
    the standard library or was generated by Python or torch at run time."""
    if name.startswith(GENERATED) or "torchinductor" in name or name.endswith(DEPRECATIONS):
        return None, True
    path = _resolved(name)
    for package in _PACKAGES:
        if path.is_relative_to(package):
            return path.relative_to(package.parent).as_posix(), False
    return None, path.is_relative_to(_STANDARD) and path.relative_to(_STANDARD).parts[0] not in INSTALLED


@functools.lru_cache(maxsize=4096)
def _imported_as(name: str) -> str:
    """The part of a path below the innermost folder on `sys.path` that it is in, or below the folder that packages are
    installed in: short, and the same on all ranks."""
    path = _resolved(name)
    if (installed := libraries.file_of(path)) is not None:
        return installed
    entries: list[object] = [*sys.path]
    folders = [_resolved(entry) for entry in entries if isinstance(entry, str) and entry]  # Python ignores others too
    known = [folder for folder in folders if folder.is_absolute() and path.is_relative_to(folder)]
    return path.relative_to(max(known, key=lambda folder: len(folder.parts))).as_posix() if known else str(path)


def _resolved(name: str) -> Path:
    """Resolve a path; leave it as it is if it is relative (the working directory may be gone) or leads nowhere: a loop
    of links, or a NUL in the name, as generated code may have."""
    path = Path(name)
    try:
        return path.resolve() if path.is_absolute() else path
    except (OSError, RuntimeError, ValueError):
        return path
