"""The device of these tests, and all that differs between the two that they know.

`DEVICE=test` (or nothing) is the test device; `DEVICE=cuda` is the first GPU. Programs and tests ask `HERE`.
`DEVICE=recorded` is a GPU whose programs are not run: what they left is kept (`recorded.py`).
`DEVICE=dry` tries what runs on a GPU, on the test device: without its ledger, and under CUDA's names (`dry.py`).

| | test | cuda |
|---|---|---|
| device type | `testdev` | `cuda` |
| c10d backend | `testccl`, over Gloo | `nccl`; all ranks on one GPU, each as if it had a host of its own |
| devices | one in each process | one for all processes |
| streams, events | `torch.testdev.Stream`, `.Event` | `torch.cuda.Stream`, `.Event` |
| activity of profilers | `ProfilerActivity.PrivateUse1` | `ProfilerActivity.CUDA` |
| what ran, and when | the ledger | Kineto's file: there is no ledger |
| a kernel of known length | `torch.ops.testdev.spend` | `torch.cuda._sleep`, in cycles of the GPU |
| every kernel and collective of a least length | yes | no |
| memory of freed tensors overwritten | where a test asks | never |
| losses against the CPU's | equal to rounding of float32 | equal to rounding of other kernels |
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import types
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

Json = dict[str, Any]

CHOSEN: Final = os.environ.get("DEVICE", "") or "test"
KNOWN: Final = ("test", "cuda", "recorded", "dry")

ONE_GPU: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET": "Socket",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_NCHANNELS": "2",
}
"""With a host id of its own for each rank, and no way to a peer but sockets, NCCL takes several ranks on one GPU. It
takes a GPU for used twice if two ranks have the same host and bus id. Few channels: the ranks take turns on the GPU."""


@dataclass(frozen=True, slots=True)
class Device:
    """One of the two. Making it touches no device."""

    name: str  # as in `torch.device(name)` and `torch.<name>`
    backend: str  # of c10d
    activity: ProfilerActivity
    has_ledger: bool
    relative_error: float  # of losses, against the CPU's
    is_gpu: bool = False

    @property
    def backends(self) -> str:
        """The argument of `init_process_group`."""
        return f"cpu:gloo,{self.name}:{self.backend}"

    @property
    def activities(self) -> list[ProfilerActivity]:
        """What a profiler is asked for."""
        return [ProfilerActivity.CPU, self.activity]

    @property
    def module(self) -> types.ModuleType:
        """`torch.cuda`, or what is that for the test device."""
        module: types.ModuleType = torch.get_device_module(self.name)
        return module

    def begin(self, *, joins: bool = True) -> None:
        """Make the device known to torch, and join the process group of all ranks (`joins`)."""
        if self.has_ledger:
            from tests.device import testdev  # noqa: F401
        else:
            self._answer_to_cuda()
            os.environ.update(ONE_GPU | {"NCCL_HOSTID": f"ddptrace-test-{os.environ['RANK']}"})
            torch.cuda.set_device(0)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            _cycles_per_ns()  # now, since it waits for the device
        if joins:
            dist.init_process_group(self.backends)

    def _answer_to_cuda(self) -> None:
        if not self.is_gpu:
            from tests.device import dry

            dry.install()

    def end(self) -> NoReturn:
        """End the program, once all ranks are here with nothing left to do, and leave what it holds to the system.

        Torch destroys a Gloo group with the interpreter locked, and waits for the group's thread, which may need the
        interpreter to let go of its last work. The ranks meet at their store: a rank that leaves a collective may not
        have sent all yet that its peers wait for.
        """
        self.synchronize()
        store, ranks = dist.distributed_c10d._get_default_store(), range(dist.get_world_size())
        store.set(f"ended-{dist.get_rank()}", "")
        store.wait([f"ended-{rank}" for rank in ranks])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def synchronize(self) -> None:
        self.module.synchronize()

    def take_ledger(self) -> tuple[list[Json], list[Json]]:
        """Return what has run since the last call, as `testdev.Entry`, and the host's calls, as `testdev.Call`; nothing
        where there is no ledger."""
        if not self.has_ledger:
            self.synchronize()
            return [], []
        from tests.device import testdev

        ledger = [dataclasses.asdict(entry) for entry in testdev.take_ledger()]
        return ledger, [dataclasses.asdict(call) for call in testdev.take_calls()]

    def set_floors_ns(self, kernel: int = 0, collective: int = 0) -> None:
        """Make every kernel take at least this long, and every collective from when its ranks have come, where the
        device can."""
        if self.has_ledger:
            from tests.device import testdev

            testdev.set_floors_ns(kernel, collective)

    def overwrite_freed(self, overwrite: bool) -> None:
        if self.has_ledger:
            from tests.device import testdev

            testdev.overwrite_freed(overwrite)

    def spend(self, ns: int) -> None:
        """Launch a kernel that takes about `ns` nanoseconds (on the test device, at least)."""
        if self.has_ledger:
            from tests.device import testdev

            testdev.spend(ns)
        else:
            torch.cuda._sleep(round(ns * _cycles_per_ns()))  # type: ignore[attr-defined]


@functools.cache
def _cycles_per_ns() -> float:
    """Return how many cycles a GPU's clock makes, once it has been at work for a moment."""
    cycles = 20_000_000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for event in (None, begin, end):
        if event is not None:
            event.record()
        torch.cuda._sleep(cycles)  # type: ignore[attr-defined]
    torch.cuda.synchronize()
    return cycles / (begin.elapsed_time(end) * 1e6)


TEST: Final = Device("testdev", "testccl", ProfilerActivity.PrivateUse1, True, 1e-5)
CUDA: Final = Device("cuda", "nccl", ProfilerActivity.CUDA, False, 2e-3, is_gpu=True)
DRY: Final = dataclasses.replace(TEST, has_ledger=False)
if CHOSEN not in KNOWN:
    raise SystemExit(f"DEVICE={CHOSEN} is not known: say DEVICE=test, DEVICE=cuda, DEVICE=recorded or DEVICE=dry")
HERE: Final = dict(zip(KNOWN, (TEST, CUDA, CUDA, DRY), strict=True))[CHOSEN]
