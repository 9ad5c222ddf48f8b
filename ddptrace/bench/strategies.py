"""Ways to average gradients over ranks, each one idea better than the one before, and stock DDP beside them.

    naive       an all-reduce for each gradient, when backward is over
    flat        one all-reduce of all gradients, when backward is over           fewer starts
    overlap     an all-reduce for each gradient, as soon as it is ready          hidden behind backward
    bucketed    an all-reduce for some gradients, as soon as these are ready     both: see `ddptrace.reducer`

All but the last are written out here, for models whose every parameter gets a gradient in every step. Gradients are
divided before they are sent, as in torch's DDP. Each rank keeps its own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddptrace.reducer import BucketedDataParallel

AllReduce = Callable[..., Any]
"""Called as `torch.distributed.all_reduce` is."""


def add_up(tensor: Tensor, *, async_op: bool = False) -> Any:
    """All-reduce. Looked up at each call, since a tracer may have replaced it."""
    return dist.all_reduce(tensor, async_op=async_op)


class Rung(nn.Module):
    """A module that begins with rank 0's values. After backward and `finish_grad_sync()` every gradient is the mean."""

    def __init__(self, module: nn.Module, all_reduce: AllReduce = add_up) -> None:
        super().__init__()
        self.module = module
        self._all_reduce = all_reduce
        self._ranks = dist.get_world_size()
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), 0)

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def finish_grad_sync(self) -> None:
        """Average the gradients. Call it between backward and the optimizer."""
        raise NotImplementedError

    def _gradients(self) -> Iterator[Tensor]:
        return (parameter.grad for parameter in self.module.parameters() if parameter.grad is not None)


class Naive(Rung):
    """Each gradient alone, one after the other, when backward is over: nothing is hidden, and every start is paid for.

    backward     | layer 4 | layer 3 | layer 2 | layer 1 |
    on the wire                                          |=1=| |=2=| |=3=| |=4=|
    exposed                                              |~~~~~~~~~~~~~~~~~~~~~|  finish_grad_sync
    optimizer                                                                  |
    """

    def finish_grad_sync(self) -> None:
        for gradient in self._gradients():
            gradient.div_(self._ranks)
            self._all_reduce(gradient)


class Flat(Rung):
    """All gradients in one tensor: one start instead of many, two copies more, and still nothing is hidden.

    backward     | layer 4 | layer 3 | layer 2 | layer 1 |
    copies                                               |1234|               |1234|
    on the wire                                               |====1 2 3 4====|
    exposed                                                   |~~~~~~~~~~~~~~~|       finish_grad_sync
    optimizer                                                                      |
    """

    def finish_grad_sync(self) -> None:
        gradients = list(self._gradients())
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).div_(self._ranks)
        self._all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


class Overlap(Rung):
    """Each gradient alone, while backward computes the next one: much is hidden, and every start is paid for.

    backward     | layer 4 | layer 3 | layer 2 | layer 1 |
    gradients    . 4       . 3       . 2       . 1       .
    on the wire            |===4===| |===3===| |===2===| |===1===|
    exposed                                              |~~~~~~~|  finish_grad_sync waits
    optimizer                                                    |

    Ranks must send in the same order. They do where they run the same model: autograd then takes the same way back.
    """

    def __init__(self, module: nn.Module, all_reduce: AllReduce = add_up) -> None:
        super().__init__(module, all_reduce)
        self._sent: list[Any] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_sender(all_reduce, self._ranks, self._sent))

    def finish_grad_sync(self) -> None:
        for work in self._sent:
            work.wait()
        self._sent.clear()


def _sender(all_reduce: AllReduce, ranks: int, sent: list[Any]) -> Callable[[Tensor], None]:
    """Return a hook that autograd calls during backward. It must not hold the module, whose parameters hold it: the
    garbage collector does not find a cycle through a parameter's hooks."""

    def gradient_ready(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.div_(ranks)
        sent.append(all_reduce(parameter.grad, async_op=True))

    return gradient_ready


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to average gradients. `wrap` puts it around a module. `finish(wrapped)` is what the program has to call
    after backward; it does nothing if the wrapper does all."""

    name: str
    wrap: Callable[[nn.Module], nn.Module]
    finish: Callable[[nn.Module], None] = field(default=lambda wrapped: None)


def naive(all_reduce: AllReduce = add_up) -> Strategy:
    return Strategy("naive", lambda module: Naive(module, all_reduce), _finish)


def flat(all_reduce: AllReduce = add_up) -> Strategy:
    return Strategy("flat", lambda module: Flat(module, all_reduce), _finish)


def overlap(all_reduce: AllReduce = add_up) -> Strategy:
    return Strategy("overlap", lambda module: Overlap(module, all_reduce), _finish)


def _finish(wrapped: nn.Module) -> None:
    cast(Rung, wrapped).finish_grad_sync()


def bucketed(cap_mb: float, name: str = "bucketed", **more: Any) -> Strategy:
    """Return our own reducer. `cap_mb`, in MiB, holds for the first bucket too, as with DDP."""
    return Strategy(name, lambda module: BucketedDataParallel(module, bucket_caps_mb=[cap_mb], **_alone(more)))


def stock_ddp(cap_mb: float, name: str = "ddp", **more: Any) -> Strategy:
    """Return torch's own, with gradients as views, as ours has them. `cap_mb`: in MiB."""
    settings = {"bucket_cap_mb": cap_mb, "gradient_as_bucket_view": True} | more
    return Strategy(name, lambda module: DistributedDataParallel(module, **_alone(settings)))


REDUCERS: Final[dict[str, Callable[..., Strategy]]] = {"ddp": stock_ddp, "bucketed": bucketed}
"""By name, what makes a strategy from a cap in MiB."""


def _alone(settings: dict[str, Any]) -> dict[str, Any]:
    """Add a process group for this model alone, as if the program trained nothing else: models that share a group cost
    the tracer time in each step. Collective."""
    return settings if "process_group" in settings else settings | {"process_group": dist.new_group()}
