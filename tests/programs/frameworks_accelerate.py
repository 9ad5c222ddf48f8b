"""An Accelerate training loop as its users write it. `frameworks_accelerate.py OUT [RUN]`: RUN traces it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ddptrace
from tests.programs.frameworks_saved import save_and_part

EPOCHS, BATCHES, BATCH = 2, 7, 4  # of one rank; two batches an update: 4 updates an epoch


def data(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 32), torch.randint(4, (count,)))


def train(accelerator: Accelerator, model: Any, optimizer: Any, scheduler: Any, loader: Any) -> int:
    """One epoch; how many updates it made."""
    updates = 0
    model.train()
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                updates += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return updates


def evaluate(accelerator: Accelerator, model: Any, loader: Any) -> None:
    model.eval()
    for inputs, labels in loader:
        with torch.no_grad():
            accelerator.gather_for_metrics((model(inputs).argmax(1), labels))


def main(out: str, run: str | None) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(1)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    adam = torch.optim.AdamW(net.parameters(), lr=0.01)
    parts = accelerator.prepare(
        net, adam, torch.optim.lr_scheduler.StepLR(adam, 3),
        DataLoader(data(accelerator.num_processes * BATCHES * BATCH), batch_size=BATCH, shuffle=True),
        DataLoader(data(accelerator.num_processes * 2 * BATCH), batch_size=BATCH),
    )  # fmt: skip
    model, optimizer, scheduler, training, evaluation = parts
    profile = torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1)
    updates = 0
    with ddptrace.trace(run, profile=profile) if run else contextlib.nullcontext():
        for _ in range(EPOCHS):
            updates += train(accelerator, model, optimizer, scheduler, training)
            evaluate(accelerator, model, evaluation)
    save_and_part(out, net, updates)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
