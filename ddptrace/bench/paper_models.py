"""Models of the sizes that papers measure, with random weights: nothing is downloaded. They want a GPU.

What counts here is what a reducer sees: how many gradients there are, how large each is, and how long computing takes.
In the transformers the weights of query, key and value are one tensor, as in GPT-2; BERT's own code has three.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from ddptrace.bench.models import Conv, ResNet, stem

STAGES: Final = ((3, 64), (4, 128), (6, 256), (3, 512))
"""Of ResNet-50: how many blocks, and the channels that their 3×3 convolution has."""


def resnet50() -> ResNet:
    """25,557,032 parameters in 161 tensors, for pictures of 224×224: ResNet-50 as torchvision has it."""
    blocks = [
        (Conv(1, width), Conv(3, width, 2 if stage and not block else 1), Conv(1, 4 * width))
        for stage, (count, width) in enumerate(STAGES)
        for block in range(count)
    ]
    return ResNet(stem(Conv(7, 64, 2), nn.MaxPool2d(3, 2, 1)), 64, blocks, classes=1000)


class Bert(nn.Module):
    """A bidirectional transformer that predicts every token; the defaults are BERT-large, 335,174,458 parameters."""

    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, vocabulary: int = 30522) -> None:
        super().__init__()
        self.token, self.position, self.segment = (_table(rows, width) for rows in (vocabulary, 512, 2))
        self.norm = nn.LayerNorm(width)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor, segments: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of `targets`; all are int64 of shape (batch, up to 512)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.norm(self.token(tokens) + self.position(places) + self.segment(segments))
        scores = nn.functional.linear(self.head(self.blocks(hidden)), self.token.weight, self.bias)
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


class Gpt2(nn.Module):
    """A causal transformer that reads and predicts with one table of tokens; the defaults are GPT-2 XL, 1,557,611,200
    parameters."""

    def __init__(
        self, layers: int = 48, width: int = 1600, heads: int = 25, context: int = 1024, vocabulary: int = 50257
    ) -> None:
        super().__init__()
        self.token, self.position = _table(vocabulary, width), _table(context, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of `targets`; both are int64 of shape (batch, context)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.blocks(self.token(tokens) + self.position(places), mask=self.mask, is_causal=True)
        scores = nn.functional.linear(hidden, self.token.weight)
        return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def _table(rows: int, width: int) -> nn.Embedding:
    """Starts small, as both papers have it: what reads a token also scores it, and the first loss is about ln(rows)."""
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=0.02)
    return table
