"""Hugging Face's Trainer on a tiny GPT-2 with random weights, evaluating in between. `frameworks_trainer.py OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from tests.programs.frameworks_saved import save_and_part

EPOCHS, BATCHES, BATCH = 2, 7, 4  # of one rank; two batches an update: 4 updates an epoch


def texts(count: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(64, (count, 16))
    return [{"input_ids": row, "labels": row} for row in tokens]


def main(out: str) -> None:
    set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    )
    arguments = TrainingArguments(
        output_dir=str(Path(out).parent), use_cpu=True, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=BATCH,
        logging_steps=2, save_strategy="no", report_to=[], disable_tqdm=True, ddp_backend="gloo",
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=texts(2 * BATCHES * BATCH), eval_dataset=texts(2 * 2 * BATCH))
    trainer.train()
    save_and_part(out, model, trainer.state.global_step)


if __name__ == "__main__":
    main(sys.argv[1])
