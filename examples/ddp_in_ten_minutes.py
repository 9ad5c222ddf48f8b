"""Five ways to average gradients over the ranks: the script of the page "DDP in ten minutes".

    torchrun --nproc-per-node 2 examples/ddp_in_ten_minutes.py naive run/naive
    ddptrace analyze run/naive

The ways are naive, flat, overlap, bucketed and hook. All learn the same; they differ in when and how gradients travel.
"""

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace

STEPS, BATCH, WIDTH, LAYERS = 16, 128, 768, 5
Average = Callable[[], None]
"""Called after each backward: returns when every gradient is the mean over the ranks."""


def naive(model: nn.Module) -> tuple[nn.Module, Average]:
    """When backward is over, send one gradient after the other, and wait for each."""

    def average() -> None:
        for parameter in model.parameters():
            dist.all_reduce(gradient(parameter))
            gradient(parameter).div_(dist.get_world_size())

    return model, average


def flat(model: nn.Module) -> tuple[nn.Module, Average]:
    """When backward is over, send all gradients as one."""

    def average() -> None:
        gradients = [gradient(parameter) for parameter in model.parameters()]
        whole = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(whole)
        means = whole.div_(dist.get_world_size()).split([one.numel() for one in gradients])
        for one, mean in zip(gradients, means, strict=True):
            one.copy_(mean.view_as(one))

    return model, average


def overlap(model: nn.Module) -> tuple[nn.Module, Average]:
    """Send each gradient as soon as it is there, while backward goes on to the layers before."""
    under_way: list[tuple[Tensor, dist.Work]] = []

    def send(parameter: Tensor) -> None:
        under_way.append((gradient(parameter), dist.all_reduce(gradient(parameter), async_op=True)))

    def average() -> None:
        for one, work in under_way:
            work.wait()
            one.div_(dist.get_world_size())
        under_way.clear()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(send)
    return model, average


def bucketed(model: nn.Module) -> tuple[nn.Module, Average]:
    """Let DistributedDataParallel send several gradients together, as soon as all of these are there."""
    return DistributedDataParallel(model, bucket_cap_mb=5), lambda: None


def hook(model: nn.Module) -> tuple[nn.Module, Average]:
    """The same with your own hook, which sends half of the bytes."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=5)
    wrapped.register_comm_hook(None, in_half)
    return wrapped, lambda: None


def in_half(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
    """A communication hook: gets a bucket of gradients, and returns the future of their mean."""
    sent = bucket.buffer().to(torch.float16).div_(dist.get_world_size())
    future = dist.all_reduce(sent, async_op=True).get_future()
    mean: torch.futures.Future[Tensor] = future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
    return mean


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


WAYS = {"naive": naive, "flat": flat, "overlap": overlap, "bucketed": bucketed, "hook": hook}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS, help="how gradients are averaged")
    parser.add_argument("out", help="run directory; its old run is replaced")
    said = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same model on every rank
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model, average = WAYS[said.way](nn.Sequential(*layers, nn.Linear(WIDTH, 1)))
    torch.manual_seed(1 + dist.get_rank())  # and different data
    window = torch.profiler.schedule(wait=8, warmup=1, active=3, repeat=1)
    with ddptrace.trace(said.out, profile=window, overwrite=True, name=said.way):
        loss = train(model, average)
    if dist.get_rank() == 0:
        print(f"{said.way}: loss {loss:.4f}")
    dist.destroy_process_group()


def train(model: nn.Module, average: Average) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, WIDTH)
        loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
        loss.backward()
        average()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    main()
