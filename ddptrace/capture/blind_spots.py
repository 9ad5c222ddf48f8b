"""What no surface sees of a training: written into the manifest, so that silence is not taken for absence."""

from __future__ import annotations

from typing import Final

BLIND_SPOTS: Final = (
    "communication hooks registered before the trace: what they issue is seen, their own time is the backward's",
    "collectives, forwards and backwards inside the replay of a CUDA graph: seen when it is captured, not when it is "
    "replayed; a profiler window shows the kernels",
    "collectives that are issued on a backend object, beneath its process group, and those of a process group that is "
    "written in Python",
    "how a backend carries a call out: what NCCL fuses into one kernel are the calls it was given, monitored_barrier "
    "is one call without bytes, and the checks of TORCH_DISTRIBUTED_DEBUG=DETAIL are none",
    "what goes through a store: making and leaving groups, rendezvous",
    "whether a send or a receive was waited for at once: no such call says so",
    "the ranks of a group that torch.distributed does not list, as ProcessGroup.split_group makes one: only their "
    "number is known",
    "a forward that is called by its name instead of through the module",
    "a backward by torch.autograd.grad, or whose name was imported before the trace, is no phase",
    "steps, phases and buckets of a second training that runs in another thread",
    "which bucket a collective is where several threads run backwards of DDP models at once",
    "what data loader workers and other child processes do",
)
