"""A GPT on any device: large on a GPU, small where ranks share one, tiny on the test device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Size:
    width: int
    layers: int
    heads: int
    vocabulary: int
    length: int  # of a sequence
    batch: int


LARGE: Final = Size(768, 12, 12, 16384, 512, 8)
SMALL: Final = Size(256, 4, 4, 4096, 128, 4)
TINY: Final = Size(32, 2, 2, 64, 8, 2)


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                size.width,
                size.heads,
                4 * size.width,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(size.layers)
        )
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.length), persistent=False)
        self.register_buffer("places", torch.arange(size.length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        made = self.token(tokens) + self.place(self.places)
        for block in self.blocks:
            made = block(made, src_mask=self.mask, is_causal=True)
        logits: Tensor = self.head(made)
        return logits


def model_of(size: Size, device: str) -> GPT:
    torch.manual_seed(0)
    return GPT(size).to(device)


def stepping(model: nn.Module, size: Size, device: str) -> Callable[[], Tensor]:
    """Return a function that trains one step and returns its loss, on the device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    torch.manual_seed(1)
    text = torch.randint(size.vocabulary, (size.batch, size.length + 1)).to(device)

    def step() -> Tensor:
        logits = model(text[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
