"""A Lightning training loop as its users write it: validation, accumulation, clipping. `frameworks_lightning.py OUT`.

Under torchrun, or alone: then Lightning starts the second rank itself.
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

EPOCHS, BATCHES, BATCH = 2, 7, 4  # of one rank; two batches an update: 4 updates an epoch


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(inputs), labels), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def data(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 32), torch.randint(4, (count,)))


def main(out: str) -> None:
    lightning.seed_everything(1, verbose=False)
    model, ranks = Classifier(), 2
    train = DataLoader(data(ranks * BATCHES * BATCH), batch_size=BATCH, shuffle=True)
    evaluate = DataLoader(data(ranks * 2 * BATCH), batch_size=BATCH)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=ranks, max_epochs=EPOCHS, accumulate_grad_batches=2,
        gradient_clip_val=0.5, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=Path(out).parent,
    )  # fmt: skip
    trainer.fit(model, train, evaluate)
    save_and_part(out, model, trainer.global_step)


if __name__ == "__main__":
    main(sys.argv[1])
