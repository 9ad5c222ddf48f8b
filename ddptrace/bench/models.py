"""Models to measure with, made in code."""

from __future__ import annotations

import torch
from torch import nn


class Gpt(nn.Module):
    """A byte-level transformer; the defaults are about 10.8M parameters, the size of the demo's."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 6, context: int = 64) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy in nats of `targets`; both are int64 of shape (batch, context)."""
        hidden = self.blocks(self.token(tokens) + self.position, mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    """Equal square layers, 25 MB by default: gradients come evenly through backward."""

    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The mean square of the outputs; `inputs` has shape (batch, width)."""
        outputs: torch.Tensor = self.layers(inputs)
        return outputs.square().mean()
