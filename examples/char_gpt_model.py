"""A byte-level GPT of 10.8M parameters and the text it reads. Nothing in here knows of ddptrace."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

CONTEXT, LAYERS, HEADS, WIDTH = 64, 6, 6, 384


def standard_library_text() -> Tensor:
    """The source of Python's own standard library, a few million bytes as uint8: real text that every machine has."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def bigram_entropy(text: Tensor) -> float:
    """H(next byte | this byte) of `text` in nats: the loss of the best model that sees only one byte."""
    pairs = torch.bincount(text[:-1].long() * 256 + text[1:].long(), minlength=256 * 256).view(256, 256).double()
    conditional = pairs / pairs.sum(1, keepdim=True).clamp(min=1)
    return float(-torch.special.xlogy(pairs / pairs.sum(), conditional).sum())


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """The text cut into pieces of `CONTEXT` bytes; a target is the byte that comes next."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        widened: Tensor = self.down(F.gelu(self.up(self.norm_2(x))))
        return x + widened


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position: pairs of channels turned by an angle that grows with the position."""
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


class CharGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        channels = WIDTH // HEADS
        self.angles = torch.arange(CONTEXT)[:, None] * 100.0 ** (-torch.arange(0, channels, 2) / channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, (batch, length, 256), for bytes of shape (batch, length)."""
        x, cos, sin = self.token(tokens), self.angles.cos(), self.angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        logits: Tensor = self.head(self.norm(x))
        return logits
