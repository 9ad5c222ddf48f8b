"""A GAN in Lightning, which hands the whole training step of both optimizers to DDP. `frameworks_lightning_gan.py OUT`.

Started alone: Lightning starts the second rank itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.programs.frameworks_saved import save_and_part

ROUNDS, BATCH, RANKS = 5, 4, 2


class Gan(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch: Any, index: int) -> None:
        g_optimizer, c_optimizer = self.optimizers()
        noise = torch.randn(BATCH, 8)
        self.update(c_optimizer, self.critic(self.generator(noise).detach()).mean() - self.critic(batch[0]).mean())
        self.update(g_optimizer, -self.critic(self.generator(noise)).mean())

    def update(self, optimizer: Any, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.critic)]


def main(out: str) -> None:
    lightning.seed_everything(1, verbose=False)
    model = Gan()
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp_find_unused_parameters_true", devices=RANKS, max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=Path(out).parent,
    )  # fmt: skip
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(RANKS * ROUNDS * BATCH, 8)), batch_size=BATCH))
    save_and_part(out, model, trainer.global_step)


if __name__ == "__main__":
    main(sys.argv[1])
