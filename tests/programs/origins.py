"""Collectives of every origin under stock DDP and BucketedDataParallel. `origins.py RUN`. Lines that a test looks for
end in a comment that names them."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from tests.programs.leaving import leave

STEPS = 3


class Gate(nn.Module):
    """A layer with a collective of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.detach().sum()
        dist.all_reduce(total)  # in a forward
        return x


class Net(nn.Module):
    """Six parameters, of which two may stay unused; three buffers of two dtypes."""

    def __init__(self, *, unused: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 8), Gate())
        self.norm = nn.BatchNorm1d(8)
        self.spare = nn.Linear(8, 8)
        self.unused = unused

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.encoder(x))
        return x if self.unused else self.spare(x)


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        model(torch.randn(4, 8)).pow(2).mean().backward()  # a step
        optimizer.step()
        optimizer.zero_grad()


def halved(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)  # in a hook
    assert work is not None
    reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return reduced


def by_hand() -> None:
    other, group = 1 - dist.get_rank(), dist.group.WORLD
    assert group is not None
    ones = torch.ones(3)
    dist.all_reduce(ones)  # all_reduce
    dist.broadcast_object_list([{"step": 1}], src=0)  # broadcast_object_list
    dist.all_gather_object([None, None], {"rank": other})  # all_gather_object
    functional.all_reduce(ones, "sum", group).sum()  # functional
    exchange = [dist.P2POp(dist.isend, ones, other), dist.P2POp(dist.irecv, torch.empty(3), other)]
    for request in dist.batch_isend_irecv(exchange):  # batch_isend_irecv
        request.wait()
    (lambda: dist.barrier())()  # barrier


def main(run: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    always = torch.profiler.schedule(wait=0, warmup=0, active=1000)
    with ddptrace.trace(run, profile=always):
        train(DistributedDataParallel(Net(unused=False)))  # stock, rebuilt
        train(DistributedDataParallel(Net(unused=True), find_unused_parameters=True))  # stock, unused
        hooked = DistributedDataParallel(Net(unused=False))  # stock, hooked
        hooked.register_comm_hook(None, halved)
        train(hooked)
        train(ddptrace.BucketedDataParallel(Net(unused=False)))  # ours, rebuilt
        train(ddptrace.BucketedDataParallel(Net(unused=True), find_unused_parameters=True))  # ours, unused
        by_hand()
    leave()


if __name__ == "__main__":
    main(sys.argv[1])
