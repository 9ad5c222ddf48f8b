"""Two trainings recorded by what ddptrace gives to their library, into RUN/whole and RUN/failed: the second one raises.
`integrations.py RUN LIBRARY`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

STEPS, BATCH, RANKS = 6, 4, 2


def with_lightning(run: str, fails: bool) -> None:
    import lightning

    from ddptrace.integrations.lightning import TraceCallback
    from tests.programs.frameworks_lightning import Classifier, data

    class Failing(Classifier):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if fails and index == STEPS - 2:
                planted()
            return super().training_step(batch, index)

    trainer = lightning.Trainer(
        accelerator="cpu", strategy="ddp", devices=RANKS, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[TraceCallback(run)],
    )  # fmt: skip
    trainer.fit(Failing(), DataLoader(data(RANKS * STEPS * BATCH), batch_size=BATCH))


def with_transformers(run: str, fails: bool) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from ddptrace.integrations.transformers import TraceCallback
    from tests.programs.frameworks_trainer import texts

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=1)
    arguments = TrainingArguments(
        output_dir=str(Path(run).parent), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=BATCH,
        save_strategy="no", report_to=[], disable_tqdm=True, ddp_backend="gloo",
    )  # fmt: skip
    trainer = Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=texts(RANKS * STEPS * BATCH), callbacks=[TraceCallback(run)]
    )
    if fails:
        trainer.training_step = planted
    trainer.train()


def planted(*args: Any) -> torch.Tensor:
    raise FloatingPointError("planted")


def with_accelerate(run: str, fails: bool) -> None:
    from accelerate import Accelerator

    from ddptrace.integrations.accelerate import TraceKwargs
    from tests.programs.frameworks_accelerate import data

    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(32, 4)
    with accelerator.profile(TraceKwargs(run)):
        model, optimizer, loader = accelerator.prepare(
            net, torch.optim.SGD(net.parameters(), lr=0.01), DataLoader(data(RANKS * STEPS * BATCH), batch_size=BATCH)
        )
        for index, (inputs, labels) in enumerate(loader):
            accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
            if fails and index == STEPS - 2:
                planted()
            optimizer.step()
            optimizer.zero_grad()


TRAININGS = {"lightning": with_lightning, "transformers": with_transformers, "accelerate": with_accelerate}

if __name__ == "__main__":
    train, run = TRAININGS[sys.argv[2]], sys.argv[1]
    train(f"{run}/whole", False)
    with contextlib.suppress(FloatingPointError):
        train(f"{run}/failed", True)
