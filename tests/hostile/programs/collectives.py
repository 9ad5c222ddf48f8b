"""What ranks can say to each other."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import STEPS, batch, ddp, join, keep_error, loss_of, network, sgd, steps, train

Trace = Callable[..., AbstractContextManager[Any]]


@program(ranks=2)
def every_collective() -> None:
    """Calls each collective of torch.distributed, waiting and not."""
    rank = join()
    value = torch.arange(4.0) + rank
    both = [torch.zeros(4), torch.zeros(4)]
    for is_async in (False, True):
        for collective, arguments in (
            (dist.all_reduce, (value,)),
            (dist.broadcast, (value, 0)),
            (dist.reduce, (value, 1)),
            (dist.all_gather, (both, value)),
            (dist.gather, (value, both if rank == 0 else None, 0)),
            (dist.scatter, (value, both if rank == 1 else None, 1)),
            (dist.barrier, ()),
        ):
            work = collective(*arguments, async_op=is_async)
            if work is not None:
                keep(work.wait(), work.is_completed())
            keep(value, *both)
    out = torch.zeros(8)
    dist.all_gather_into_tensor(out, value)
    dist.reduce_scatter_tensor(value, out)
    dist.all_to_all_single(out, out.clone())
    dist.all_to_all(both, [both[1], both[0]])
    dist.all_reduce_coalesced([value, out])  # deprecated: torch warns
    dist.all_gather_coalesced([[torch.zeros(4)], [torch.zeros(4)]], [value])
    for operation in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT, dist.ReduceOp.AVG):
        keep_error(dist.all_reduce, value, op=operation)
    keep(value, out, *both)


@program(ranks=2)
def odd_tensors() -> None:
    """Sends tensors of every kind: empty, scalars, bool, complex, views, sparse, quantised; and refuses some."""
    join()
    tensors = [
        torch.zeros(0),
        torch.tensor(3.0),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(4, 4)[:, 1],
        torch.ones(4, 4).t(),
        torch.ones(3).expand(2, 3),
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.ones(2, dtype=torch.float16),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.uint8),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2, requires_grad=True),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        torch.empty(2, device="meta"),
        nn.Parameter(torch.ones(2)),
        torch.ones(2).to(torch.float8_e4m3fn),
    ]
    for tensor in tensors:
        keep(tensor.dtype, tensor.layout)
        keep_error(dist.all_reduce, tensor)
        if tensor.layout is torch.strided and not tensor.is_meta:
            keep(tensor)
    keep_error(dist.all_reduce, "no tensor")
    keep_error(dist.all_gather, [torch.ones(1)], torch.ones(2))
    keep_error(dist.broadcast, torch.ones(1), 7)
    keep_error(dist.all_reduce)


@program(ranks=2)
def sent_and_received() -> None:
    """Sends from one to the other: blocking, not, from any, in a batch, and objects."""
    rank = join()
    value = torch.arange(4.0) * (rank + 1)
    other = 1 - rank
    if rank == 0:
        dist.send(value, 1)
        dist.isend(value, 1, tag=3).wait()
        dist.send_object_list([{"a": torch.ones(2)}, "b"], 1)
    else:
        keep(dist.recv(value))
        dist.irecv(value, 0, tag=3).wait()
        objects: list[Any] = [None, None]
        dist.recv_object_list(objects, 0)
        keep(objects[1], objects[0]["a"])
    received = torch.zeros(4)
    operations = [dist.P2POp(dist.isend, value, other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    keep(value, received)
    keep_error(dist.send, value, rank)


@program(ranks=2)
def objects() -> None:
    """Broadcasts, gathers and scatters objects."""
    rank = join()
    everything: list[Any] = [None, None]
    dist.all_gather_object(everything, {"rank": rank, "model": network()})
    keep([one["rank"] for one in everything])
    given = ["a", {"b": rank}] if rank == 0 else [None, None]
    dist.broadcast_object_list(given, 0)
    dist.gather_object(rank, everything if rank == 0 else None, dst=0)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, ["x", "y"] if rank == 0 else None, src=0)
    keep(given, everything if rank == 0 else 0, mine)
    keep_error(dist.all_gather_object, everything, lambda: None)


@program(ranks=2)
def chained_futures() -> None:
    """Chains callbacks on the futures of collectives, some of which raise."""
    join()
    seen: list[str] = []
    futures = []
    for number in range(4):
        work = dist.all_reduce(torch.full((20_000,), float(number)), async_op=True)
        future = work.get_future()
        futures.append(future.then(lambda done: done.value()[0][:1] * 2).then(lambda done: done.value() + 1))
        future.add_done_callback(lambda done: seen.append("done"))
    keep(*(future.wait() for future in futures))

    def refuse(done: Any) -> None:
        raise ValueError("in a callback")

    failing = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(refuse)
    keep_type(failing.wait)  # its words tell the lines of whichever thread ran the callback
    keep(*torch.futures.wait_all([dist.all_reduce(torch.ones(2), async_op=True).get_future()]))
    collected = torch.futures.collect_all(futures).wait()
    deadline = time.monotonic() + 10
    while (
        len(seen) < len(futures) and time.monotonic() < deadline
    ):  # Gloo's threads run the last of these callbacks later
        time.sleep(0.001)
    keep(len(collected), len(seen))


@program(ranks=2)
def never_waited() -> None:
    """Drops the Work of collectives without waiting, with and without its tensors."""
    join()
    kept = [dist.all_reduce(torch.ones(100), async_op=True) for _ in range(10)]
    for _ in range(20):
        dist.all_reduce(torch.ones(100), async_op=True)
    model = ddp()
    for _ in steps(model):
        dist.all_reduce(torch.ones(10), async_op=True)
    del kept
    dist.barrier()


@program(ranks=2)
def waited_twice() -> None:
    """Waits twice, with a timeout, in another thread, and asks Work for everything."""
    join()
    value = torch.ones(1000)
    work = dist.all_reduce(value, async_op=True)
    keep(work.wait(datetime.timedelta(seconds=10)), work.wait())
    thread = threading.Thread(target=lambda: keep(work.wait()))
    thread.start()
    thread.join()
    keep(value, work.is_completed(), type(work).__name__, work.result())
    keep_error(work.exception)
    keep_error(work.source_rank)
    keep(hash(work) is not None, work == work)


@program(ranks=2)
def timed_out() -> None:
    """Meets a collective that the other rank does not issue in time, in a group made for it."""
    rank = join()
    group = dist.new_group([0, 1], timeout=datetime.timedelta(milliseconds=300))
    if rank == 0:
        error = keep_type(dist.all_reduce, torch.ones(1), group=group)
        assert error
    dist.barrier()
    keep(rank)


def keep_type(action: Callable[..., object], *args: Any, **kwargs: Any) -> bool:
    """Note of what kind the error is: its words name ports and times."""
    try:
        action(*args, **kwargs)
    except Exception as error:
        keep(type(error).__name__)
        return True
    return False


@program(ranks=2)
def monitored_barrier() -> None:
    """Finds out by a monitored barrier who is missing."""
    rank = join()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    if rank == 0:
        keep_type(dist.monitored_barrier, timeout=datetime.timedelta(milliseconds=200))
    keep("over")


@program(ranks=2)
def groups_made_anew() -> None:
    """Destroys the default group and makes it again, several times, with subgroups."""
    for number in range(3):
        rank = join()
        group = dist.new_group([0, 1], group_desc=f"mine {number}")
        alone = [dist.new_group([one]) for one in range(2)][rank]
        model = ddp(process_group=group)
        train(model, None, 3)
        dist.all_reduce(torch.ones(2), group=alone)
        keep(dist.get_process_group_ranks(group), dist.get_rank(group), group.group_name, group.group_desc)
        keep(dist.get_backend(group), dist.get_world_size(alone))
        del model
        if number % 2:
            dist.destroy_process_group(group)
        dist.barrier()
        dist.destroy_process_group()
        keep(dist.is_initialized())
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)  # as torchrun says it
        keep_error(dist.all_reduce, torch.ones(1))


@program(ranks=2)
def groups_of_every_kind() -> None:
    """Makes groups with names, options, timeouts, by mesh, by split and by hand."""
    rank = join()
    for make in (
        lambda: dist.new_group([0, 1], use_local_synchronization=True),
        lambda: dist.new_group([0, 1], timeout=datetime.timedelta(seconds=30), backend="gloo"),
        lambda: dist.new_subgroups(2)[0],
        lambda: dist.new_subgroups_by_enumeration([[0, 1]])[0],
        lambda: dist.split_group(split_ranks=[[0, 1]]),
    ):
        group: Any = None
        with contextlib.suppress(RuntimeError, ValueError, TypeError):
            group = make()  # type: ignore[no-untyped-call]
        value = torch.ones(3) * (rank + 1)
        if group is not None:
            dist.all_reduce(value, group=group)
            group.allreduce([value]).wait()
        keep(group is None, value)
    mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
    value = torch.ones(3)
    dist.all_reduce(value, group=mesh["data"].get_group())
    store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
    own = dist.ProcessGroupGloo(store, rank, 2)
    own.allreduce([value]).wait()
    own.barrier().wait()
    keep(value)


@program(ranks=2)
def functional_collectives() -> None:
    """Calls functional collectives, with and without gradients."""
    rank = join()
    group = dist.distributed_c10d._get_default_group()
    value = torch.ones(4) * (rank + 1)
    results = [
        functional.all_reduce(value, "sum", group),
        functional.all_gather_tensor(value, 0, group),
        functional.reduce_scatter_tensor(value, "sum", 0, group),
        functional.broadcast(value, 0, group),
        functional.all_to_all_single(value, None, None, group),
        *functional.all_reduce_coalesced([value, value], "sum", group),
    ]
    keep(*(one + 1 for one in results))
    keep(functional.wait_tensor(functional.all_reduce(value, "avg", group)))
    functional.all_reduce(value, "sum", group)  # never waited
    parameter = torch.ones(4, requires_grad=True)
    functional.all_gather_tensor_autograd(parameter, 0, group).sum().backward()
    import torch.distributed.nn.functional as differentiable

    differentiable.all_reduce(parameter * 2).sum().backward()
    keep(parameter.grad)


@program(ranks=2)
def distributed_tensors() -> None:
    """Trains with DTensor, in tensor parallel, and redistributes."""
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    join()
    mesh = dist.init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(batch()).sum()
        loss.backward()
        optimizer.step()
        keep(loss)
    value = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    keep(value.redistribute(mesh, [Replicate()]), (value + value).sum(), value.full_tensor())
    assert isinstance(value, DTensor)


@program(ranks=2)
def joined_unevenly() -> None:
    """Has more batches on one rank than on the other."""
    rank = join()
    model = ddp()
    optimizer = sgd(model)
    with model.join():
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
    keep(model)

    class Counts(Joinable):
        def __init__(self) -> None:
            super().__init__()
            self.value = torch.zeros(1)

        def __call__(self) -> None:
            Join.notify_join_context(self)
            dist.all_reduce(torch.ones(1))

        def join_hook(self, **_: Any) -> JoinHook:
            class Hook(JoinHook):
                def main_hook(self) -> None:
                    dist.all_reduce(torch.zeros(1))

            return Hook()

        @property
        def join_device(self) -> torch.device:
            return torch.device("cpu")

        @property
        def join_process_group(self) -> Any:
            return dist.group.WORLD

    counts = Counts()
    with Join([counts]):
        for _ in range(2 + rank):
            counts()


@program(ranks=2)
def communication_hooks() -> None:
    """Registers every hook of torch for DDP's buckets, and some that fail."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks

    hooks: list[tuple[Any, Callable[..., Any]]] = [
        (None, default_hooks.allreduce_hook),
        (None, default_hooks.fp16_compress_hook),
        (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
        (powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
    ]
    join()
    for state, hook in hooks:
        model = ddp(bucket_cap_mb=1 if state else 0.0001)  # of several buckets, PowerSGD's ranks mix them up on Gloo
        model.register_comm_hook(state, hook)
        train(model, None, 3)
    model = ddp()
    keep_error(model.register_comm_hook, None, lambda state, bucket: None)
    keep_error(model.register_comm_hook, None, "no hook")
    keep(quantization_hooks.quantization_pertensor_hook.__name__)


@program(ranks=2)
def hook_of_a_bucket_that_raises() -> None:
    """Raises in a communication hook, and in the future that one returns."""
    join()

    def refuse(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        raise ValueError("not this bucket")

    def fail(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_exception(ValueError("no result"))
        return future

    class Callable_:
        __name__ = __qualname__ = "callable"

        def __call__(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer() / 2)
            return future

    for hook in (refuse, fail, Callable_()):
        model = ddp()
        keep_error(model.register_comm_hook, None, hook)
        loss = loss_of(model)
        keep_error(loss.backward)
        keep(loss)
    train(ddp())


@program(ranks=2)
def model_averaging() -> None:
    """Averages models by hand, reduces buffers, and communicates in hooks of modules and optimizers."""
    join()
    model = ddp(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)), broadcast_buffers=True)
    optimizer = sgd(model)
    model.register_forward_hook(lambda *_: dist.all_reduce(torch.ones(2)))
    optimizer.register_step_post_hook(lambda *_: dist.all_reduce(torch.ones(3)))
    model.module[0].register_full_backward_hook(lambda *_: dist.all_reduce(torch.ones(4)))
    train(model, optimizer)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(8)))
    keep(type(converted[0]).__name__)


@program(ranks=2)
def two_traces_in_turn(trace: Trace) -> None:
    """Trains in a trace, without one, and in another, over groups that it makes anew."""
    for number in range(3):
        with trace(f"run-{number}"):
            model = ddp()
            train(model)
        train(model, None, 2)
        dist.barrier()
        if number == 1:
            dist.destroy_process_group()


@program(ranks=2)
def entered_before_and_left_late(trace: Trace) -> None:
    """Enters a trace twice, in a function, a generator and by hand, and leaves it where no group is any more."""
    with trace("first"):
        train(ddp())
        dist.destroy_process_group()
    one = trace("second")
    one.__enter__()
    train(ddp())
    one.__exit__(None, None, None)
    one.__exit__(None, None, None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(trace("third"))
        train(ddp())
        dist.destroy_process_group()


@program(ranks=2)
def threads_that_communicate() -> None:
    """Reduces in three threads at once, each over a group of its own, while the main thread trains."""
    rank = join()
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    results: list[torch.Tensor] = [torch.zeros(1)] * 3

    def reduce(number: int) -> None:
        value = torch.ones(50) * (rank + number)
        for _ in range(20):
            dist.all_reduce(value, group=groups[number])
            value /= 2
        results[number] = value

    threads = [threading.Thread(target=reduce, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    train(ddp())
    for thread in threads:
        thread.join()
    keep(*results)


@program(ranks=2)
def a_store_of_its_own() -> None:
    """Uses stores beside the group's, with keys of any name, and counts its keys."""
    rank = join()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"mine {rank}", "x")
    store.wait([f"mine {1 - rank}"])
    keep(store.get("mine 0"), store.add("counted", 0), store.check(["mine 0", "nothing"]))
    files = dist.FileStore(f"/tmp/hostile-store-{os.environ['MASTER_PORT']}", 2)
    dist.barrier()
    files.add("both", 1)
    while files.add("both", 0) < 2:
        time.sleep(0.01)
    keep(files.get("both"))


@program(ranks=2)
def nothing_but_sleep() -> None:
    """Communicates after a pause in which nothing is recorded."""
    join()
    time.sleep(0.2)
    dist.barrier()
    for _ in range(STEPS):
        dist.all_reduce(torch.ones(2))


@program(ranks=2, notes=frozenset({"tap-failed"}))
def a_kernel_of_its_own(trace: Trace) -> None:
    """Has put a kernel in front of a collective before the trace begins, and finds every call there."""
    join()
    seen: list[str] = []
    operator = torch.ops.c10d.allreduce_.default
    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any) -> Any:
        seen.append("called")
        return operator.redispatch(keys & after, *args)

    library = torch.library.Library("c10d", "IMPL")
    library.impl("allreduce_", kernel, "BackendSelect", with_keyset=True)
    with trace():
        dist.all_reduce(torch.ones(2))
        train(ddp(), None, 2)
    keep(len(seen))
    library._destroy()
    dist.all_reduce(torch.ones(2))


@program(ranks=2)
def a_backend_of_python() -> None:
    """Communicates through a process group that it has written in Python, whose groups have no names."""

    class Done(dist.Work):
        def __init__(self, result: Any) -> None:
            super().__init__()
            self.future: torch.futures.Future[Any] = torch.futures.Future()
            self.future.set_result(result)

        def wait(self, timeout: Any = None) -> bool:
            return True

        def get_future(self) -> Any:
            return self.future

    class Alone(dist.ProcessGroup):
        def __init__(self, rank: int, size: int) -> None:
            super().__init__(rank, size)  # type: ignore[call-arg] # the stub knows no group without a store
            self.calls: list[str] = []

        def allreduce(self, tensors: Any, options: Any = None) -> Done:
            self.calls.append("allreduce")
            for tensor in tensors:
                tensor.mul_(2)
            return Done(tensors)

        def allgather(self, outputs: Any, inputs: Any, options: Any = None) -> Done:
            self.calls.append("allgather")
            for several, one in zip(outputs, inputs, strict=True):
                for output in several:
                    output.copy_(one)
            return Done(outputs)

        def broadcast(self, tensors: Any, options: Any = None) -> Done:
            self.calls.append("broadcast")
            return Done(tensors)

        def getBackendName(self) -> str:
            return "alone"

    made: list[Alone] = []

    def make(store: Any, rank: int, size: int, timeout: Any) -> Alone:
        made.append(Alone(rank, size))
        return made[-1]

    dist.Backend.register_backend("alone", make, devices=["cpu"])
    join()
    group = dist.new_group([0, 1], backend="alone")
    values, outputs = torch.ones(3), [torch.zeros(3), torch.zeros(3)]
    for work in (dist.all_reduce(values, group=group, async_op=True), dist.all_gather(outputs, values, group, True)):
        keep(type(work).__name__, work.wait())
    keep(values, *outputs)
    keep_error(lambda: train(DistributedDataParallel(network(), process_group=group)))
    keep([one.calls for one in made])
    train(ddp())
    dist.destroy_process_group()
