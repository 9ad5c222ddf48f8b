"""What no surface can see of a training. The manifest lists it, so that nobody takes silence for absence."""

from __future__ import annotations

from typing import Final

ALWAYS: Final = (
    "the time of communication hooks registered before the trace: their collectives are seen, the rest of their time "
    "counts as backward",
    "collectives, forwards and backwards inside the replay of a CUDA graph: they are seen when the graph is captured, "
    "not when it is replayed; a profiler window shows its kernels",
    "collectives issued on a backend object, beneath its process group, and those of a process group written in Python",
    "how a backend carries out a call: what NCCL fuses into one kernel is recorded as the calls it was given, "
    "monitored_barrier as one call without bytes, and the checks of TORCH_DISTRIBUTED_DEBUG=DETAIL not at all",
    "what goes through a store: making and leaving groups, rendezvous",
    "whether the program waits at once for a send or a receive: such calls do not show it",
    "the ranks of a group that torch.distributed does not list, such as one of ProcessGroup.split_group: only their "
    "number is known",
    "a forward called by its name (`module.forward(x)`) instead of through the module",
    "backward phases of torch.autograd.grad, and of a `backward` function imported before the trace",
    "steps, phases and buckets of a second training that runs in another thread",
    "which bucket a collective is if several threads run backwards of DDP models at once",
    "what data loader workers and other child processes do",
)

WITHOUT_THE_TAP: Final = (
    "collectives that C++ issues: the buckets and buffers of DistributedDataParallel, functional collectives, DTensor, "
    "compiled code (the dispatcher tap, which sees them, does not work with this torch)"
)

OF_REMOTE_CALLS: Final = (
    "runs of builtin operators and TorchScript functions at the callee, and the payload beside their tensors",
    "calls that TorchScript itself makes",
    "the wire beside payloads and tensors: message headers, reference counting, the request of a to_here",
    "gradients of arguments if the callee is not traced or runs no Python: inferred from the arguments",
    "the phase and the waits of a distributed backward if its function was imported before the trace",
)

WITHOUT_SCHEDULER_TIMES: Final = (
    "how long the training thread waits for a processor, and its processor time: this system does not report them"
)

WITHOUT_LINUX: Final = (
    "network links and processor quotas: unlike Linux, this system reports neither TCP connections nor quotas"
)
