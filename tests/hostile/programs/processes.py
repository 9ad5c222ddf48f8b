"""Other processes that a program makes, and workers that load its data."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

from tests.hostile.kept import keep
from tests.hostile.registry import program
from tests.hostile.training import WIDTH, batch, ddp, join, keep_error, network, steps, train

Trace = Callable[..., AbstractContextManager[Any]]


def waited(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@program()
def forked_on_the_way() -> None:
    """Forks in the middle of a step; the child trains on, and ends in every way."""
    for number, end in enumerate((lambda: os._exit(3), lambda: sys.exit(4), lambda: 1 / 0, lambda: None)):
        model = network()
        for step in steps(model, None, 3):
            if step == 1:
                child = os.fork()
                if not child:
                    try:
                        train(model, None, 2)
                        end()
                        os._exit(0)
                    except BaseException as error:
                        os._exit(100 + number + isinstance(error, SystemExit))
                keep(waited(child))


@program(ends=True, profiled=False)  # where torch's profiler has run, a forked child hangs at the end, traced or not
def forked_and_ended_by_python() -> None:
    """Forks; both go through Python's shutdown."""
    train()
    sys.stdout.flush()
    child = os.fork()
    if child:
        keep(waited(child))
    train(None, None, 2)
    print("parent" if child else "child")
    sys.exit(0 if child else 5)


@program(ranks=2)
def forked_beside_communication() -> None:
    """Forks children that do not communicate, while the ranks do."""
    model = ddp()
    for _ in steps(model):
        child = os.fork()
        if not child:
            time.sleep(0.02)
            os._exit(0)
        keep(waited(child))


@program(ends=True)
def daemonized() -> None:
    """Forks twice and closes all files, as a daemon does, and trains in the grandchild."""
    read, write = os.pipe()
    train()
    sys.stdout.flush()
    if not os.fork():
        os.setsid()
        if not os.fork():
            keep(type(train()).__name__)
            os.write(write, b"trained")
        os._exit(0)
    os.wait()
    keep(os.read(read, 100))
    train()


@program()
def subprocesses() -> None:
    """Starts other programs, in every way, with its files open and not."""
    train()
    keep(subprocess.run(["/bin/echo", "said"], capture_output=True, check=True).stdout)
    subprocess.run(["/bin/sh", "-c", "echo to the same place; exit 3"])
    keep(subprocess.run("ls /proc/self/fd | wc -l", shell=True, capture_output=True).stdout)
    keep(os.system("exit 4"), os.popen("echo through a pipe").read())
    keep(waited(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], dict(os.environ))))
    keep(os.spawnv(os.P_WAIT, "/bin/sh", ["sh", "-c", "exit 6"]))
    process = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=os.setsid)
    train()
    keep(process.communicate(b"back")[0])
    keep(sorted(name for name in os.environ if "DDPTRACE" in name))


@program()
def files_of_children() -> None:
    """Passes its files on to a program that it starts, and counts them there."""
    train()
    listed = subprocess.run(
        ["/bin/sh", "-c", "ls -l /proc/self/fd | grep -c records"], capture_output=True, close_fds=False
    )
    keep(listed.stdout)


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> int:
    raise ValueError(f"not {number}")


def trained(number: int) -> list[float]:
    torch.manual_seed(number)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(batch()).sum()
        loss.backward()
        optimizer.step()
    return [loss.item()]


@program()
def pools() -> None:
    """Computes in pools of forked processes and of threads, some of which fail."""
    train()
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        keep(pool.map(square, range(5)), pool.map(trained, range(2)))
        keep_error(pool.map, refuse, [2])
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        keep(list(executor.map(square, range(4))))
        keep_error(executor.submit(os._exit, 3).result)
    with ThreadPoolExecutor(2) as threads:
        keep(list(threads.map(square, range(4))))
        keep_error(threads.submit(refuse, 3).result)
    train()


@program()
def multiprocessing_of_torch() -> None:
    """Shares tensors with forked processes by torch's queues, and gets gradients back."""
    model = network().share_memory()
    context = torch.multiprocessing.get_context("fork")
    queue, back = context.SimpleQueue(), context.SimpleQueue()

    def work() -> None:
        inputs = queue.get()
        back.put([parameter.detach() for parameter in model.parameters()])
        model[0].bias.data.fill_(0.25)
        back.put(inputs * 2)
        queue.get()

    process = context.Process(target=work)
    process.start()
    train(model)
    queue.put(torch.ones(3))
    received = [back.get(), back.get()]
    queue.put(0)
    process.join()
    keep(process.exitcode, len(received[0]), received[1], model[0].bias)
    torch.multiprocessing.set_sharing_strategy("file_system")
    train(model)


def spawned(rank: int) -> None:
    network()(batch()).sum().backward()
    raise ValueError("this one fails")


@program()
def spawned_by_torch() -> None:
    """Spawns a process that trains and then fails."""
    train()
    keep(type(keep_kind(torch.multiprocessing.spawn, spawned, nprocs=1)).__name__)


def keep_kind(action: Callable[..., object], *args: Any, **kwargs: Any) -> BaseException | None:
    """What `action` raises: its words name a process."""
    try:
        action(*args, **kwargs)
    except Exception as error:
        return error
    return None


@program()
def started_by_torch() -> None:
    """Starts forked ranks of its own from inside the trace, which train DDP."""

    def rank(number: int, folder: str) -> None:
        os.environ.update(RANK=str(number), WORLD_SIZE="2")
        dist.init_process_group("gloo", init_method=f"file://{folder}", rank=number, world_size=2)
        model = ddp()
        for _ in steps(model):
            pass
        os._exit(0 if dist.get_world_size() == 2 else 1)

    train()
    store = f"/tmp/hostile-forked-{os.getpid()}"
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            from tests.hostile import kept

            os.dup2(null, kept._file)  # the order of what they say is not the same each time
            rank(number, store)
        children.append(child)
    keep([waited(child) for child in children])
    Path(store).unlink()


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, wrong: int = -1, slow: float = 0.0) -> None:
        self.wrong, self.slow = wrong, slow

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.wrong:
            raise IndexError("this one is missing")
        if self.slow:
            time.sleep(self.slow)
        return torch.full((WIDTH,), float(index))


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        number = 0 if info is None else info.id
        while True:
            yield torch.full((WIDTH,), float(number))


@program()
def loaded_by_forked_workers() -> None:
    """Loads data by forked workers: once, persistent, out of order, dropped in the middle."""
    model = network()
    for options in ({}, {"persistent_workers": True, "prefetch_factor": 3}, {"in_order": False, "batch_size": 16}):
        loader = DataLoader(
            Numbers(), **{"batch_size": 4, "num_workers": 2, "multiprocessing_context": "fork"} | options
        )
        for _ in range(2):
            keep(*(model(inputs).sum() for inputs in loader))
        iterator = iter(loader)
        keep(next(iterator).shape)
        del iterator, loader
    endless = iter(DataLoader(Endless(), batch_size=2, num_workers=2, multiprocessing_context="fork"))
    keep(next(endless), next(endless))
    del endless
    train(model)


@program()
def workers_that_fail() -> None:
    """Loads data by workers that raise, that end, and that take too long."""
    train()
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.1  # so long a loader waits for each of its workers to end

    def end(*_: object) -> None:
        os._exit(3)

    for loader in (
        DataLoader(Numbers(wrong=5), batch_size=4, num_workers=2, multiprocessing_context="fork"),
        DataLoader(Numbers(wrong=5), batch_size=4),
        DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork", worker_init_fn=refuse),
        DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork", worker_init_fn=end),
        DataLoader(Numbers(slow=0.5), num_workers=1, multiprocessing_context="fork", timeout=0.1),
    ):
        keep(type(keep_kind(list, loader)).__name__)
        del loader
        gc.collect()  # an error holds its loader, which waits for its workers when it goes
    train()


@program()
def loaded_by_spawned_workers() -> None:
    """Loads data by a spawned worker."""
    model = network()
    loader = DataLoader(Numbers(), batch_size=8, num_workers=1, multiprocessing_context="spawn")
    keep(*(model(inputs).sum() for inputs in loader))


@program(ranks=2)
def loaded_for_each_rank() -> None:
    """Loads a part of the data on each rank, with samplers, and trains models in the collate function."""
    from torch.utils.data.distributed import DistributedSampler

    rank = join()
    data = TensorDataset(torch.arange(64.0).reshape(8, WIDTH), torch.arange(8))
    inner = network()

    def collate(items: list[Any]) -> torch.Tensor:
        return inner(torch.stack([inputs for inputs, _ in items]))

    sampler: Any = DistributedSampler(data, 2, rank, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=2, sampler=sampler, collate_fn=collate, generator=torch.Generator())
    model = ddp(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs in loader:
            optimizer.zero_grad()
            loss = model(inputs).sum()
            loss.backward()
            optimizer.step()
            keep(loss)
    keep(model, inner)


@program()
def loaders_of_its_own() -> None:
    """Subclasses loaders, counts them, nests them, and iterates them in threads and twice at once."""

    class Loader(DataLoader[torch.Tensor]):
        asked = 0

        def __iter__(self) -> Any:
            Loader.asked += 1
            for inputs in super().__iter__():
                yield inputs * 2

    model = network()
    loader = Loader(Numbers(), batch_size=4)
    for inputs, others in zip(loader, loader, strict=True):
        model(inputs + others).sum().backward()
    with ThreadPoolExecutor(1) as pool:
        keep(pool.submit(lambda: [len(inputs) for inputs in loader]).result())
    for outer in DataLoader(Numbers(), batch_size=8):
        keep(*(model(inner + outer.mean()).sum() for inner in DataLoader(Numbers(), batch_size=8)))
    keep(Loader.asked, len(loader), model)
    with contextlib.suppress(StopIteration):
        iterator = iter(DataLoader(Numbers(), batch_size=16))
        next(iterator)
        next(iterator)


@program(ranks=2)
def remote_calls() -> None:
    """Calls functions of the other rank, which raise, return models and train."""
    from torch.distributed import rpc

    rank = int(os.environ["RANK"])
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", _transports=["uv"]
    )
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        keep(rpc.rpc_sync("worker1", square, args=(5,)), rpc.rpc_async("worker1", square, args=(2,)).wait())
        keep_error(rpc.rpc_sync, "worker1", refuse, args=(1,))
        reference = rpc.remote("worker1", torch.add, args=(torch.ones(3), 1))
        keep(reference.to_here(), rpc.rpc_sync("worker1", trained, args=(1,)))
        future = rpc.rpc_async("worker1", square, args=(3,)).then(lambda done: done.value() + 1)
        keep(future.wait())
    rpc.shutdown()
