"""One rank trains under a trace whose buckets compiled code records. `compiled_ways.py WAY RUN`; it prints how many."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.parallel import DistributedDataParallel

import ddptrace
from ddptrace.capture import session
from ddptrace.capture.collectives.bucket_sends import CompiledSends
from ddptrace.record import recorder, store
from tests.programs.leaving import leave

STEPS = 8
LAYERS = 6
LONG_STEPS = 200

taken = 0


def model(**options: object) -> DistributedDataParallel:
    """A bucket for each layer, the last one's first."""
    torch.manual_seed(0)
    return DistributedDataParallel(
        nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(LAYERS))), bucket_cap_mb=0.01, **options
    )


def train(net: nn.Module, steps: int = STEPS, each: Callable[[int], object] = id) -> float:
    for step in range(steps):
        net(torch.ones(2, 64)).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        each(step)
    return sum(float(parameter.detach().double().sum()) for parameter in net.parameters())


def plain(run: Path) -> None:
    with ddptrace.trace(run):
        train(model())


def killed(run: Path) -> None:
    """In the last backward, when all buckets but the first layer's have been sent."""
    net, steps = model(), 0

    def counted(step: int) -> None:
        nonlocal steps
        steps = step + 1

    def kill(_: Tensor) -> None:
        if steps == STEPS - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    next(net.parameters()).register_post_accumulate_grad_hook(kill)
    with ddptrace.trace(run):
        train(net, each=counted)


def rolling(run: Path) -> None:
    """Files so small that they end amid backwards, in which another thread records as well; and a keeper that finishes
    them at once."""
    store.SEGMENT_NBYTES, recorder.GRACE_S = 16 << 10, 0.0
    over = threading.Event()

    def record(into: recorder.Recorder) -> None:
        while not over.wait(0.0002):
            into.clock()

    net = model()
    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: time.sleep(0.001))
    with ddptrace.trace(run):
        assert session._current is not None
        beside = threading.Thread(target=record, args=[session._current.recorder])
        beside.start()
        train(net, LONG_STEPS)
        over.set()
        beside.join()


def sampled(run: Path) -> None:
    with ddptrace.trace(run, keep=ddptrace.Keep(every=4)):
        train(model(), 3 * STEPS)


def accumulating(run: Path) -> None:
    net = model()
    with ddptrace.trace(run):
        for _ in range(STEPS):
            with net.no_sync():
                net(torch.ones(2, 64)).sum().backward()
            train(net, 1)


def forked(run: Path) -> None:
    """A child of each step, which trains on its own and must write nothing."""

    def fork(step: int) -> None:
        child = os.fork()
        if child == 0:
            train(nn.Linear(64, 64), 1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    with ddptrace.trace(run):
        train(model(), each=fork)


def again(run: Path) -> None:
    """Off, on, off and on, of one model: the second trace learns anew."""
    net = model()
    train(net)
    with ddptrace.trace(run):
        train(net)
    train(net)
    with ddptrace.trace(run, overwrite=True):
        train(net)


def same(run: Path) -> None:
    untraced = train(model(gradient_as_bucket_view=True))
    with ddptrace.trace(run):
        traced = train(model(gradient_as_bucket_view=True))
    assert traced == untraced


def two(run: Path) -> None:
    """Models in turn: of two reducers Python records all."""
    first, second = model(), model()
    with ddptrace.trace(run):
        for _ in range(STEPS):
            train(first, 1)
            train(second, 1)


def threads(run: Path) -> None:
    """Two at once, each with a group of its own."""
    nets = [model(process_group=dist.new_group([0])) for _ in range(2)]
    with ddptrace.trace(run):
        both = [threading.Thread(target=train, args=[net, LONG_STEPS]) for net in nets]
        for one in both:
            one.start()
        for one in both:
            one.join()


def fooled(run: Path) -> None:
    """From the middle on the program sends, of a bucket of one gradient, the very memory that DDP then sends."""
    net = DistributedDataParallel(nn.Linear(64, 64, bias=False), gradient_as_bucket_view=True)
    steps = 0

    def send(parameter: Tensor) -> None:
        if steps >= STEPS:
            dist.all_reduce(parameter.grad, async_op=True).wait()

    net.module.weight.register_post_accumulate_grad_hook(send)
    with ddptrace.trace(run):
        for steps in range(2 * STEPS):  # noqa: B007 (the hook asks)
            net(torch.ones(2, 64)).sum().backward()
            net.zero_grad(set_to_none=False)


def dropped(run: Path) -> None:
    """By hand after DDP is gone: what it sends comes to lie where DDP's buckets lay."""
    net = model()

    def send(parameter: Tensor) -> None:
        dist.all_reduce(torch.empty_like(parameter.grad), async_op=True).wait()

    with ddptrace.trace(run):
        train(net)
        inner = net.module
        del net
        for parameter in inner.parameters():
            parameter.register_post_accumulate_grad_hook(send)
        train(inner)


def symbolic(run: Path) -> None:
    """As a compiler sends that traces a program: nothing."""
    with ddptrace.trace(run):
        fake = FakeTensorMode(shape_env=ShapeEnv())
        tensor = fake.from_tensor(torch.ones(8, 3), static_shapes=False)
        with fake:
            dist.all_reduce(tensor, async_op=True)
        train(model())


WAYS = {
    way.__name__: way
    for way in (
        plain, killed, rolling, sampled, accumulating, forked, again, same, two, threads, fooled, dropped, symbolic,
    )
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    end = CompiledSends.end

    def counted(sends: CompiledSends) -> list[int]:
        global taken
        sent = end(sends)
        taken += len(sent)
        return sent

    CompiledSends.end = counted  # type: ignore[method-assign]
    dist.init_process_group("gloo")
    WAYS[sys.argv[1]](Path(sys.argv[2]))
    print("taken", taken)
    leave()


if __name__ == "__main__":
    main()
