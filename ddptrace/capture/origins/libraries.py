"""Installed libraries on the stack of a collective. A library stands between the program and torch, so its line is
recorded beside the program's. The functions listed below say more: an origin, modules, or that they only pass on.

    all_reduce                   deepspeed/comm/torch.py            only passes on
    get_grad_norm_direct         deepspeed/runtime/zero/stage3.py   the library's line; origin: AGREEMENT
    DeepSpeedEngine.step         deepspeed/runtime/engine.py        adds nothing
    main                         train.py                           the program's line

A function is named by the beginning of "file:qualified name", with the file as Python imports it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from ddptrace.schema import Origin

INSTALLED: Final = ("site-packages", "dist-packages")
SCRIPTS: Final = Path(sys.executable).parent.resolve() if sys.executable else None
"""Where pip puts the few lines that start an installed program: beside Python."""

_ZERO: Final = "deepspeed/runtime/zero/"
_STAGES: Final = ("stage_1_and_2.py:DeepSpeedZeroOptimizer.", "stage3.py:DeepSpeedZeroOptimizer_Stage3.")
_ENGINE: Final = "deepspeed/runtime/engine.py:DeepSpeedEngine."
_PIPELINE: Final = "deepspeed/runtime/pipe/engine.py:PipelineEngine."
_GATHERS: Final = f"{_ZERO}partitioned_param_coordinator.py:PartitionedParameterCoordinator.__all_gather_params"

PASSING: Final = (
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

ORIGINS: Final = (
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

PARAMETERS: Final = (
    (_GATHERS, "partitioned_params", ""),
    (f"{_ZERO}partition_parameters.py:GatheredParameters.", "self", "params"),
)
"""The local variable of a function, and the attribute of it, that holds the parameters that it gathers."""


def file_of(path: Path) -> str | None:
    """Return a file of an installed library or program as Python imports it; None for any other file."""
    places = [at for at, part in enumerate(path.parts) if part in INSTALLED]
    if places:
        return "/".join(path.parts[places[-1] + 1 :])
    return path.name if path.parent == SCRIPTS else None
