"""DeepSpeed as its users write it: ZeRO stages 1 to 3, and a mixture of experts. `frameworks_deepspeed.py OUT [RUN]`:
RUN traces each training into a folder of its own in there."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

import ddptrace
from tests.programs.leaving import leave

STEPS = 3
STAGES = {"zero-1": 1, "zero-2": 2, "zero-3": 3, "moe": 0}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, *, experts: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 16)
        self.block = MoE(16, Block(), num_experts=2, ep_size=2, k=1) if experts else Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        out = self.block(x)  # the block
        return out[0] if isinstance(out, tuple) else out


def train(case: str, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    stage = STAGES[case]
    config = {
        "train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {
            "stage": stage, "reduce_bucket_size": 600, "stage3_param_persistence_threshold": 0,
            "stage3_prefetch_bucket_size": 600, "stage3_gather_16bit_weights_on_model_save": True,
        },
    }  # fmt: skip
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = Stack(experts=case == "moe")  # made
    parameters: Any = list(model.parameters())
    if case == "moe":
        parameters = split_params_into_different_moe_groups_for_optimizer({"params": parameters, "name": "all"})
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)  # initialized
    losses = []
    for _ in range(STEPS):
        loss = engine(torch.randn(4, 16) + dist.get_rank()).pow(2).mean()  # forward
        engine.backward(loss)  # backward
        engine.step()  # step
        losses.append(loss.item())
    if stage == 3:
        engine.save_16bit_model(str(folder))  # saved
    else:
        engine.save_checkpoint(str(folder))
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):  # gathered
        return {"losses": losses, "parameters": [parameter.detach().clone() for parameter in model.parameters()]}


def main(out: str, run: str | None) -> None:
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else compiled, for collectives of inference
    deepspeed.init_distributed("gloo")
    left = {}
    for case in STAGES:
        with ddptrace.trace(Path(run) / case) if run else contextlib.nullcontext():
            left[case] = train(case, Path(f"{out}-{case}"))
    torch.save(left, f"{out}-{dist.get_rank()}.pt")
    dist.barrier()
    leave()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
