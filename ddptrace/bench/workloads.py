"""What the benchmarks train: models for one machine, and those of papers for a cluster.

All are made in code with random weights: nothing is downloaded. `Gpt`, `Mlp` and `convnet` fit one machine. `resnet50`,
`Bert` and `Gpt2` have the sizes that papers measure and want a GPU. What counts here is what a reducer sees: how many
gradients there are, how large each is, and how long computing takes. In the transformers query, key and value share one
weight tensor, as in GPT-2; BERT's own code has three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from ddptrace.bench.experiment import known
from ddptrace.bench.job import Job
from ddptrace.bench.strategies import Strategy

Batch = tuple[Tensor, ...]


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

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in nats of `targets`; both are int64 of shape (batch, context)."""
        hidden = self.blocks(self.token(tokens) + self.position, mask=self.mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


class Mlp(nn.Module):
    """Equal square layers, 25 MB by default: gradients come evenly through backward."""

    def __init__(self, layers: int = 6, width: int = 1024) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))

    def forward(self, inputs: Tensor) -> Tensor:
        """The mean square of the outputs; `inputs` has shape (batch, width)."""
        outputs: Tensor = self.layers(inputs)
        return outputs.square().mean()


class Conv(NamedTuple):
    """A convolution of a residual block, with BatchNorm after it. `kernel` is its side."""

    kernel: int
    channels: int
    stride: int = 1


class Residual(nn.Module):
    """Adds a block's input to its output; where the block changes the shape, through a convolution.

    inputs ─┬─ conv, norm ─ ReLU ─ conv, norm ─ ... ─ + ─ ReLU
            └─ nothing, or conv 1×1, norm ────────────┘
    """

    def __init__(self, channels: int, path: Sequence[Conv]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside, stride = channels, 1
        for conv in path:
            layers += [*_normed(inside, conv), nn.ReLU()]
            inside, stride = conv.channels, stride * conv.stride
        self.path = nn.Sequential(*layers[:-1])
        same = inside == channels and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normed(channels, Conv(1, inside, stride)))

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.relu(self.path(inputs) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A stem, residual blocks in a row, the mean over the picture, one linear layer. Its BatchNorms have buffers."""

    def __init__(self, stem: nn.Module, channels: int, blocks: Sequence[Sequence[Conv]], classes: int) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.Sequential()
        for path in blocks:
            self.blocks.append(Residual(channels, path))
            channels = path[-1].channels
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        """Mean cross-entropy in nats; `images` of shape (batch, 3, side, side), `classes` int64 of shape (batch,)."""
        features = self.blocks(self.stem(images)).mean((2, 3))
        return nn.functional.cross_entropy(self.head(features), classes)


def stem(conv: Conv, *pooling: nn.Module) -> nn.Module:
    """What takes pictures in: a convolution over their three colours."""
    return nn.Sequential(*_normed(3, conv), nn.ReLU(), *pooling)


def convnet() -> ResNet:
    """4.3M parameters in 65 tensors, most of them small, for pictures of 32×32: three stages of three blocks."""
    widths = (64, 128, 256)
    strides = ((1, 1, 1), (2, 1, 1), (2, 1, 1))
    blocks = [
        (Conv(3, width, stride), Conv(3, width))
        for width, of_stage in zip(widths, strides, strict=True)
        for stride in of_stage
    ]
    return ResNet(stem(Conv(3, widths[0], 2)), widths[0], blocks, classes=10)


def _normed(channels: int, conv: Conv) -> tuple[nn.Module, nn.Module]:
    padding = conv.kernel // 2
    convolution = nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride, padding, bias=False)
    return convolution, nn.BatchNorm2d(conv.channels)


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
    """Make a table with small weights, as both papers do: the same table reads and scores tokens, so the first loss is
    about ln(rows)."""
    table = nn.Embedding(rows, width)
    nn.init.normal_(table.weight, std=0.02)
    return table


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its input. `make()`, called under the same seed everywhere, returns a module whose forward takes
    `batch(generator, size)` and returns the mean loss. `batch_size`: of one rank."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], Batch]
    batch_size: int


def _vectors(chance: torch.Generator, size: int) -> Batch:
    return (torch.randn(size, 1024, generator=chance),)


def _tokens(vocabulary: int, context: int) -> Callable[[torch.Generator, int], Batch]:
    """Return a batch of tokens, and for each token the next one."""

    def batch(chance: torch.Generator, size: int) -> Batch:
        tokens = torch.randint(vocabulary, (size, context + 1), generator=chance)
        return tokens[:, :-1], tokens[:, 1:]

    return batch


def _sentences(chance: torch.Generator, size: int) -> Batch:
    """Return 128 tokens, the sentence (of two) of each, and the token to predict in its place."""
    tokens, targets = torch.randint(30522, (2, size, 128), generator=chance)
    return tokens, torch.arange(128).ge(64).long().expand(size, -1), targets


def _images(side: int, classes: int) -> Callable[[torch.Generator, int], Batch]:
    def batch(chance: torch.Generator, size: int) -> Batch:
        images = torch.randn(size, 3, side, side, generator=chance)
        return images, torch.randint(classes, (size,), generator=chance)

    return batch


WORKLOADS: Final = {
    work.name: work
    for work in (
        Workload("gpt", Gpt, _tokens(256, 64), 4),
        Workload("mlp", Mlp, _vectors, 256),
        Workload("convnet", convnet, _images(32, 10), 4),
        # the models are papers', the sizes of the batches are ours
        Workload("resnet50", resnet50, _images(224, 1000), 32),
        Workload("bert", Bert, _sentences, 8),
        Workload("gpt2-xl", Gpt2, _tokens(50257, 1024), 1),
    )
}


def workload(name: str) -> Workload:
    """Return the workload of this name. Raises: DdptraceError if there is none."""
    known("workload", (name,), WORKLOADS)
    return WORKLOADS[name]


def nbytes(model: nn.Module) -> int:
    """Return the bytes of all gradients, which a step sends once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


class Trainee:
    """One model of a workload under one strategy. `step()` is one update, always with the same batch."""

    def __init__(self, job: Job, workload: Workload, strategy: Strategy) -> None:
        torch.manual_seed(0)
        self.model = strategy.wrap(workload.make().to(job.device))
        self._finish = strategy.finish
        chance = torch.Generator().manual_seed(1 + job.rank)
        self.batch = tuple(part.to(job.device) for part in workload.batch(chance, workload.batch_size))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.model(*self.batch).backward()
        self._finish(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
