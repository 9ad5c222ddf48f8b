"""Training loops of other packages, unchanged; they are small, as everything here is."""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import WIDTH, ddp, join, network, sgd, train


def data(count: int = 16) -> TensorDataset:
    torch.manual_seed(1)
    return TensorDataset(torch.randn(count, WIDTH), torch.randint(2, (count,)))


def folder() -> Path:
    return Path(os.environ["HOSTILE_FOLDER"]) / "framework"


@program(ranks=2, needs=("lightning",), imports=("lightning",))
def lightning_trainer() -> None:
    """Trains with Lightning: accumulation, clipping, validation, a callback that raises at the end."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            inputs, labels = batch
            loss = nn.functional.cross_entropy(self.net(inputs), labels)
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("validated", self.net(batch[0]).sum(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    class Raises(lightning.Callback):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            raise ValueError("at the end")

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(1, verbose=False)
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder(),
        callbacks=[Raises()],
    )
    try:
        trainer.fit(model, DataLoader(data(), batch_size=2), DataLoader(data(), batch_size=4))
    except ValueError as error:
        keep(str(error))
    keep(model, trainer.global_step)


CPU = (("DS_ACCELERATOR", "cpu"),)
"""Else DeepSpeed prints, with the time of day, that it has found no device."""


@program(ranks=2, needs=("accelerate",), imports=("accelerate",), environ=CPU)
def accelerate_loop() -> None:
    """Trains with Accelerate: accumulation, clipping, gathered metrics, a saved state."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(1)
    net = network()
    model, optimizer, loader = accelerator.prepare(net, sgd(net), DataLoader(data(), batch_size=2))
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        keep(loss, accelerator.gather_for_metrics(model(inputs).argmax(1)))
    accelerator.save_state(str(folder()))
    accelerator.wait_for_everyone()  # one rank saves what both load
    accelerator.load_state(str(folder()))
    keep(accelerator.unwrap_model(model))


@program(
    ranks=2,
    needs=("transformers", "accelerate"),
    imports=("transformers.trainer", "transformers.models.gpt2"),
    environ=CPU,
)
def huggingface_trainer() -> None:
    """Trains a small GPT-2 with Hugging Face's Trainer, with its checkpoints and evaluations."""
    from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments, set_seed
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # it shows how long things take
    set_seed(1)
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
    model = GPT2LMHeadModel(config)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(32, (16, 8))]
    arguments = TrainingArguments(
        output_dir=str(folder()),
        use_cpu=True,
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        ddp_backend="gloo",
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.remove_callback(PrinterCallback)  # it prints how long things took
    trainer.train()
    dist.barrier()  # one rank saves what both load
    trainer.train(resume_from_checkpoint=True)
    keep(model, trainer.state.global_step)


@program(ranks=2, needs=("deepspeed",), imports=("deepspeed",), environ=CPU)
def deepspeed_engine() -> None:
    """Trains with DeepSpeed's engine, with optimizer states and gradients sharded."""
    import deepspeed

    # Else it compiles for minutes, and leaves a lock for ever where it is killed meanwhile.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
    join()
    net = network()
    configuration = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    }
    engine, *_ = deepspeed.initialize(model=net, config=configuration, dist_init_required=False)
    torch.manual_seed(1)
    for _ in range(4):
        loss = engine(torch.randn(4, WIDTH)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        keep(loss)
    keep(net)


@program(ranks=2, attempts=2)
def restarted() -> None:
    """Fails in its first attempt, and is started again as an elastic launcher does it."""
    train(ddp(), None, 3)
    dist.barrier()
    print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os._exit(3)
