"""What is trained in the data-parallel benchmarks: small ones for this machine, the paper's for a real cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

from ddptrace.bench.models import Gpt, Mlp
from ddptrace.bench.training import Workload
from ddptrace.errors import DdptraceError


def _gpt() -> Workload:
    return Workload("gpt", Gpt, lambda chance, size: _tokens(chance, size, 64), 4)


def _mlp() -> Workload:
    return Workload("mlp", Mlp, lambda chance, size: (torch.randn(size, 1024, generator=chance),), 256)


def _tokens(chance: torch.Generator, size: int, context: int) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(256, (size, context + 1), generator=chance)
    return tokens[:, :-1], tokens[:, 1:]


WORKLOADS: Final[dict[str, Callable[[], Workload]]] = {"gpt": _gpt, "mlp": _mlp}


def workload(name: str) -> Workload:
    """Raises DdptraceError for a name that is none."""
    if name not in WORKLOADS:
        raise DdptraceError(f"no workload is called {name!r}; there are: {', '.join(WORKLOADS)}")
    return WORKLOADS[name]()


def nbytes(model: nn.Module) -> int:
    """Of all gradients, as they are sent once a step."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
