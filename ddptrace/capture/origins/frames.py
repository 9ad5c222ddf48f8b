"""What a Python frame means for a collective issued below it: it is the program's, an installed library's, or a part
of torch.

A library stands between the program and torch, so its line is recorded beside the program's. Some functions say more:
an origin, modules, or that they only pass on.

    all_reduce                   deepspeed/comm/torch.py            only passes on
    get_grad_norm_direct         deepspeed/runtime/zero/stage3.py   the library's line; origin: AGREEMENT
    DeepSpeedEngine.step         deepspeed/runtime/engine.py        adds nothing
    main                         train.py                           the program's line

A function of torch or ddptrace is named by its file and its qualified name; one of a library by the beginning of
"file:qualified name". The file is as Python imports it.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch

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
    ("ddptrace/reducer/gradients.py", "Bitmap.send"): Origin.UNUSED_PARAMETERS,
    ("ddptrace/reducer/same_training.py", "Pulse.send"): Origin.AGREEMENT,
    ("ddptrace/reducer/same_training.py", "order_of_first"): Origin.REBUILD,
    ("ddptrace/reducer/sender.py", "Sender.send"): Origin.GRADIENTS,
}
FILES: Final = (
    ("ddptrace/reducer/layer_drop.py", Origin.AGREEMENT),
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

INSTALLED: Final = ("site-packages", "dist-packages")
SCRIPTS: Final = Path(sys.executable).parent.resolve() if sys.executable else None
"""Where pip puts the few lines that start an installed program: beside Python."""

_ZERO: Final = "deepspeed/runtime/zero/"
_STAGES: Final = ("stage_1_and_2.py:DeepSpeedZeroOptimizer.", "stage3.py:DeepSpeedZeroOptimizer_Stage3.")
_ENGINE: Final = "deepspeed/runtime/engine.py:DeepSpeedEngine."
_PIPELINE: Final = "deepspeed/runtime/pipe/engine.py:PipelineEngine."
_GATHERS: Final = f"{_ZERO}partitioned_param_coordinator.py:PartitionedParameterCoordinator.__all_gather_params"

PASSING_ON: Final = (
    "accelerate/accelerator.py:Accelerator.gather",
    "accelerate/accelerator.py:Accelerator.reduce",
    "accelerate/utils/operations.py:",
    "deepspeed/comm/",
    "deepspeed/moe/sharded_moe.py:_AllToAll.",
    "deepspeed/runtime/comm/",
    f"{_ENGINE}allreduce_and_copy",
    f"{_ENGINE}allreduce_bucket",
    f"{_ENGINE}allreduce_no_retain",
    "deepspeed/runtime/pipe/p2p.py:",
    "deepspeed/runtime/utils.py:all_gather",
    "deepspeed/utils/nvtx.py:",
    f"{_ZERO}partition_parameters.py:Init._all",
    f"{_ZERO}partition_parameters.py:Init._convert_to_deepspeed_param.",
    f"{_ZERO}partition_parameters.py:_dist_allgather_fn",
    _GATHERS,
    "lightning/fabric/strategies/",
    "lightning/fabric/utilities/distributed.py:",
    "lightning/pytorch/strategies/",
    "lightning_fabric/strategies/",
    "lightning_fabric/utilities/distributed.py:",
    "pytorch_lightning/strategies/",
    "torchmetrics/utilities/distributed.py:",
    "transformers/trainer_pt_utils.py:",
)
"""Functions that send for their caller: the frame around them says more."""

LIBRARY_ORIGINS: Final = (
    (f"{_ENGINE}__init__", Origin.CONSTRUCTION),
    (f"{_PIPELINE}__init__", Origin.CONSTRUCTION),
    (f"{_ZERO}partition_parameters.py:Init._zero_init_param", Origin.CONSTRUCTION),
    (f"{_ENGINE}_checkpoint_tag_validation", Origin.CHECKPOINT),
    (f"{_ENGINE}_zero3_consolidated_16bit_state_dict", Origin.CHECKPOINT),
    (f"{_ENGINE}load_checkpoint", Origin.CHECKPOINT),
    (f"{_ENGINE}save_", Origin.CHECKPOINT),
    (f"{_ENGINE}buffered_allreduce_fallback", Origin.ZERO),
    (f"{_ENGINE}clip_fp32_gradients", Origin.AGREEMENT),
    ("deepspeed/runtime/utils.py:CheckOverflow.", Origin.AGREEMENT),
    (f"{_ZERO}{_STAGES[0]}_average_expert_grad_norms", Origin.AGREEMENT),
    *(
        (f"{_ZERO}{stage}{function}", Origin.AGREEMENT)
        for stage in _STAGES
        for function in (
            "_model_parallel_all_reduce",
            "complete_grad_norm_calculation_for_cpu_offload",
            "get_grad_norm_direct",
            "has_overflow",
        )
    ),
    (f"{_ZERO}utils.py:", Origin.AGREEMENT),
    (_ZERO, Origin.ZERO),
    ("deepspeed/moe/sharded_moe.py:top", Origin.AGREEMENT),  # how many tokens an expert takes
    ("deepspeed/moe/", Origin.MOE),
    (f"{_PIPELINE}_aggregate_total_loss", Origin.AGREEMENT),
    ("deepspeed/runtime/pipe/module.py:PipelineModule.allreduce_tied_weight_gradients", Origin.ZERO),
    ("deepspeed/runtime/pipe/p2p.py:", Origin.PIPELINE),
)
"""Why it is issued: the first entry that fits."""

LIBRARY_PARAMETERS: Final = (
    (_GATHERS, "partitioned_params", ""),
    (f"{_ZERO}partition_parameters.py:GatheredParameters.", "self", "params"),
)
"""The local variable of a function, and the attribute of it, that holds the parameters that it gathers."""

_PACKAGES: Final = (Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[2])
_STANDARD: Final = Path(os.__file__).resolve().parent


def describe(code: CodeType) -> Frame:
    own, is_nobodys = _owner(code.co_filename)
    if own is None:
        return Frame(code, SKIPPED) if is_nobodys else _library_frame(code) or Frame(code, SITE)
    name = own, code.co_qualname
    local, holds = HOLDERS.get(name, ("", ""))
    if name == ENTRY:
        return Frame(code, ENGINE)
    origin = FUNCTIONS.get(name) or next((origin for start, origin in FILES if own.startswith(start)), None)
    if origin is None:
        return Frame(code, MODULE if local else SKIPPED, Origin.PROGRAM, local, holds)
    return Frame(code, ISSUER, origin, local, holds)


def _library_frame(code: CodeType) -> Frame | None:
    """Describe a library's code; None if it is the program's own."""
    file = library_file(_resolved(code.co_filename))
    if file is None:
        return None
    name = f"{file}:{code.co_qualname}"
    origin = next((origin for start, origin in LIBRARY_ORIGINS if name.startswith(start)), Origin.PROGRAM)
    held = (variable for start, *variable in LIBRARY_PARAMETERS if name.startswith(start))
    local, holds = next(held, ("", ""))
    return Frame(code, PASSING if name.startswith(PASSING_ON) else LIBRARY, origin, local, holds)


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
    if (installed := library_file(path)) is not None:
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


def library_file(path: Path) -> str | None:
    """Return a file of an installed library or program as Python imports it; None for any other file."""
    places = [at for at, part in enumerate(path.parts) if part in INSTALLED]
    if places:
        return "/".join(path.parts[places[-1] + 1 :])
    return path.name if path.parent == SCRIPTS else None
