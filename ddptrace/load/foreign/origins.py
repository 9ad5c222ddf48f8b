"""Who wanted each collective of a foreign file: what stands around its launch tells, the innermost first.

thread   DistributedDataParallel.forward  ├────────────────────────────────┤
           All2All_Pooled_Req                ├───────────────────────┤          tells: divided embedding tables
             c10d::alltoall_base_               ├─────────────────┤             tells nothing
               nccl:all_to_all                     ├──────────┤                 the launch

Where no range tells, the name of the process group or of the kernel may. Reductions that nothing explains carry one
gradient each if a backward and what follows it launch exactly as many as the backward accumulated gradients. What was
launched before the file begins is like the calls of the same kind, if all of these have one origin. All else has none.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ddptrace.load.foreign.calls import Found
from ddptrace.load.foreign.trace import OPTIMIZER_STEP, Trace
from ddptrace.load.kineto.events import Category, Ints
from ddptrace.load.tables import Call, Intervals, class_of
from ddptrace.load.windows.comm_kernels import NAMES_KNOWN
from ddptrace.load.windows.device import MODULE_PREFIX, Mask, of_category
from ddptrace.load.windows.nesting import NOTHING, innermost_around
from ddptrace.schema import Origin


@dataclass(frozen=True, slots=True)
class Rule:
    """A range with `pattern` (a regular expression) in its name issues collectives of this origin, if their op begins
    with one of `ops`; without any, whatever they are."""

    origin: Origin
    pattern: str
    ops: tuple[str, ...] = ()


REDUCTIONS: Final = ("all_reduce", "reduce_scatter", "reduce")
GATHERS: Final = ("all_gather",)
TENSORS: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
MESSAGES: Final = ("send", "recv", "coalesced", "batch")
DDP_FORWARD: Final = "DistributedDataParallel.forward"
ACCUMULATE: Final = "torch::autograd::AccumulateGrad"

RULES: Final = (
    Rule(Origin.CHECKPOINT, r"(?:^|/)torch/distributed/checkpoint/"),
    Rule(Origin.FSDP, r"^(?:FSDP::|fsdp::)"),
    Rule(Origin.FSDP, r"(?:^|/)torch/distributed/(?:_composable/)?fsdp/"),
    Rule(Origin.FSDP, r"^FullyShardedDataParallel\._"),
    Rule(Origin.FSDP, r"^FullyShardedDataParallel\.forward", GATHERS),
    Rule(Origin.ZERO, r"(?:^|/)deepspeed/runtime/zero/"),
    Rule(Origin.PIPELINE, r"^PP:\d+(?:SEND|RECV)_[FB]", MESSAGES),
    Rule(Origin.PIPELINE, r"(?:^|/)(?:torch/distributed/pipelining|deepspeed/runtime/pipe)/", MESSAGES),
    Rule(Origin.PIPELINE, r"(?:^|/)megatron/core/pipeline_parallel/", MESSAGES),
    # TorchRec: All2All_Pooled_Req, KJTAllToAllTensorsAwaitable, "## alltoall_fwd_single ##"
    Rule(Origin.EMBEDDINGS, r"All2All_|KJTAllToAll|KJTList\w*Awaitable|PooledEmbeddings|(?:^|/)torchrec/distributed/"),
    Rule(Origin.EMBEDDINGS, r"^(?:ReduceScatter|AllGather)(?:Base|V)?_(?:Req|Wait)"),
    Rule(Origin.EMBEDDINGS, r"^## (?:all2all_|alltoall_(?:fwd|bwd)_|reduce_scatter_base)"),
    Rule(Origin.MOE, r"(?:^|/)(?:deepspeed/moe|megatron/core/transformer/moe|deep_ep)/"),
    Rule(Origin.MOE, r"^(?:nn\.Module: |## )?\w*(?:M[oO]E|Moe|moe|[Ee]xperts?)(?![a-z])", ("all_to_all",)),
    Rule(Origin.MOE, r"(?:^|/)\w*(?:moe|experts?)(?:_\w+)?(?:/|\.py)", ("all_to_all",)),
    Rule(Origin.MOE, r"^(?:## )?(?:[a-z]+_)?(?:dispatch|combine)(?![a-z])", ("all_to_all",)),
    Rule(Origin.TENSOR_PARALLEL, r"(?:^|/)megatron/core/tensor_parallel/", TENSORS),
    Rule(Origin.TENSOR_PARALLEL, r"tensor_model_parallel_|^vllm::(?:all_reduce|reduce_scatter|all_gather)$", TENSORS),
    Rule(Origin.TENSOR_PARALLEL, r"_\w+(?:Model|Tensor|Sequence)ParallelRegion(?:Backward)?$", TENSORS),
    Rule(Origin.TENSOR_PARALLEL, r"^LinearWithGradAccumulationAndAsyncCommunication", TENSORS),
    Rule(Origin.TENSOR_PARALLEL, r"^nn\.Module: \w*(?:Row|Column)Parallel\w*_\d+$", TENSORS),
    Rule(Origin.TENSOR_PARALLEL, r"^nn\.Module: (?:VocabParallelEmbedding|ParallelLMHead)_\d+$", TENSORS),
    Rule(Origin.DTENSOR, r"(?:^|/)torch/distributed/tensor/", TENSORS),
    # async tensor parallelism: fused_all_gather_scaled_matmul, fused_matmul_reduce_scatter, …
    Rule(Origin.DTENSOR, r"^(?:symm_mem::)?fused_(?:\w+_)?matmul(?:_reduce_scatter)?$", TENSORS),
    Rule(Origin.BUFFERS, rf"^{re.escape(DDP_FORWARD)}$", ("broadcast",)),
    Rule(Origin.BUFFERS, r"(?:^|/)torch/nn/parallel/distributed\.py\(\d+\): _sync_(?:module_)?buffers", ("broadcast",)),
    Rule(Origin.GRADIENTS, rf"{ACCUMULATE}$", REDUCTIONS),
    Rule(Origin.GRADIENTS, r"(?:^|/)megatron/core/distributed/", REDUCTIONS),
    Rule(Origin.OPTIMIZER, r"(?:^|/)megatron/core/distributed/", GATHERS),
    Rule(Origin.OPTIMIZER, rf"^{re.escape(OPTIMIZER_STEP)}"),
)
"""Of the rules that fit one name, the first holds."""
STARTS: Final = re.compile("|".join(f"(?:{rule.pattern})" for rule in RULES if rule.pattern.startswith("^")))
ANYWHERE: Final = re.compile("|".join(f"(?:{rule.pattern})" for rule in RULES if not rule.pattern.startswith("^")))
"""All rules at once: most names fit none. What begins a name is looked for there only, which is faster."""

GROUPS: Final = (
    # Megatron's TENSOR_MODEL_PARALLEL_GROUP, torch's mesh_tp, tp:0
    Rule(Origin.TENSOR_PARALLEL, r"(?:^|mesh_)tp(?:$|[:_])|^tensor_(?:model_)?parallel", TENSORS),
    Rule(Origin.PIPELINE, r"(?:^|mesh_)pp(?:$|[:_])|^pipeline_(?:model_)?parallel", MESSAGES),
    Rule(Origin.MOE, r"(?:^|mesh_)ep(?:$|[:_])|^expert_(?:model_)?parallel", ("all_to_all",)),
    Rule(Origin.FSDP, r"^mesh_(?:fsdp|dp_shard)", ("all_gather", "reduce_scatter")),
)
"""By what the program called the process group, in any case."""

KERNELS: Final = (
    Rule(Origin.TENSOR_PARALLEL, r"cross_device_reduce_|allreduce_fusion_kernel|ShotAllReduce|allreduce_prototype_"),
)
"""By the kernel: these serve tensor parallelism in inference, and are launched by CUDA graphs, which hide all else."""

REBUILD_DTYPE: Final = "int32"
REBUILD_CALLS: Final = 2
"""In DDP's forward: of its order of parameters, then of its buckets' sizes."""

OPS: Final = dict.fromkeys(("dispatch", "combine", "notify"), Origin.MOE)
"""What no other parallelism does."""

OF_TORCH: Final = re.compile(r"^(?:<built-in |nn\.Module: )|(?:^|/)torch/|^<")
"""Python functions that only pass on what the program wants."""


def with_origins(trace: Trace, backwards: Intervals, found: Sequence[Found], calls: Sequence[Call]) -> list[Call]:
    """The calls with their origins and modules. `found`: the same calls with their threads."""
    if not found:
        return []
    launches = _Launches.of(trace, found)
    origins = [call.origin or _word(origin) for call, origin in zip(calls, launches.origins(), strict=True)]
    known = [_placed(*one) for one in zip(calls, origins, launches.modules(), strict=True)]
    return _like_others(_one_by_one(trace, backwards, known))


def _word(origin: Origin | None) -> str | None:
    return None if origin is None else origin.word


def _placed(call: Call, origin: str | None, module: str | None) -> Call:
    return dataclasses.replace(call, origin=origin, module=module) if origin or module else call


@dataclass(frozen=True)
class _Launches:
    """Where and when collectives were launched; `lanes` holds NOTHING where that is not known."""

    trace: Trace
    found: Sequence[Found]
    lanes: Ints
    at: Ints

    @classmethod
    def of(cls, trace: Trace, found: Sequence[Found]) -> _Launches:
        lanes = np.array([one.lane for one in found], np.int64)
        return cls(trace, found, lanes, np.array([one.call.launch_at_ns for one in found], np.int64))

    @cached_property
    def ranges(self) -> Mask:
        """Those of the threads that launched any."""
        kinds = of_category(self.trace.events, Category.OP, Category.ANNOTATION, Category.FRAME)
        mine: Mask = kinds & np.isin(self.trace.events.lane, np.unique(self.lanes))
        return mine

    @cached_property
    def rules(self) -> dict[int, tuple[int, ...]]:
        """By the number of a name, the rules that fit it."""
        names = self.trace.events.names
        used = np.unique(self.trace.events.name[self.ranges]).tolist()
        return {i: fitting for i in used if (fitting := _fitting(names[i]))}

    def origins(self) -> list[Origin | None]:
        """By ranges, then by the group or kernel; what Python code issued that no rule knows is the program's."""
        by_op: dict[str, list[int]] = defaultdict(list)
        for k, one in enumerate(self.found):
            by_op[one.call.op].append(k)
        origins: list[Origin | None] = [None] * len(self.found)
        for op, ks in by_op.items():
            for k, origin in zip(ks, self._around(op, np.array(ks)), strict=True):
                origins[k] = origin if origin is not None else _told_beside(self.found[k])
        for k in self._rebuilds(origins):
            origins[k] = Origin.REBUILD
        is_programs = self._within(self._frames(lambda name: not OF_TORCH.search(name))) != NOTHING
        return [
            Origin.PROGRAM if origin is None and is_program else origin
            for origin, is_program in zip(origins, is_programs.tolist(), strict=True)
        ]

    def _rebuilds(self, origins: Sequence[Origin | None]) -> Iterator[int]:
        """Broadcasts with which DDP agrees on new buckets, before the forward that sends buffers: the parameters' order
        and the buckets' sizes. Buffers of one dtype go together, so two of int32 are not buffers."""
        forwards = self._within(self.ranges & self.trace.named((DDP_FORWARD,)))
        found: dict[int, list[int]] = defaultdict(list)
        for k in np.argsort(self.at, kind="stable").tolist():
            if origins[k] is Origin.BUFFERS and self.found[k].call.dtype == REBUILD_DTYPE and forwards[k] != NOTHING:
                found[int(forwards[k])].append(k)
        for ks in found.values():
            if len(ks) >= REBUILD_CALLS:
                yield from ks[:REBUILD_CALLS]

    def _around(self, op: str, ks: Ints) -> Iterator[Origin | None]:
        """By the innermost range that a rule for this op knows."""
        events = self.trace.events
        which = np.full(len(events.names), NOTHING, np.int64)
        for name, fitting in self.rules.items():
            which[name] = next((i for i in fitting if not RULES[i].ops or op.startswith(RULES[i].ops)), NOTHING)
        told = self.ranges & (which[events.name] != NOTHING)
        for position in innermost_around(events, told, self.lanes[ks], self.at[ks]).tolist():
            yield None if position == NOTHING else RULES[int(which[events.name[position]])].origin

    def modules(self) -> list[str | None]:
        """The class of the innermost nn.Module around each."""
        return [
            None if position == NOTHING else class_of(self.trace.name(position).removeprefix(MODULE_PREFIX))
            for position in self._within(self._frames(lambda name: name.startswith(MODULE_PREFIX))).tolist()
        ]

    def _frames(self, is_wanted: Callable[[str], bool]) -> Mask:
        """Python functions and modules with such names."""
        events, frames = self.trace.events, self.ranges & of_category(self.trace.events, Category.FRAME)
        wanted = [i for i in np.unique(events.name[frames]).tolist() if is_wanted(events.names[i])]
        chosen: Mask = frames & np.isin(events.name, wanted)
        return chosen

    def _within(self, ranges: Mask) -> Ints:
        """The innermost of the ranges around each."""
        return innermost_around(self.trace.events, ranges, self.lanes, self.at)


@functools.lru_cache(NAMES_KNOWN)
def _fitting(name: str) -> tuple[int, ...]:
    """The rules that fit a name, which the files of many ranks have alike."""
    if not STARTS.match(name) and not ANYWHERE.search(name):
        return ()
    return tuple(i for i, rule in enumerate(RULES) if re.search(rule.pattern, name))


def _told_beside(found: Found) -> Origin | None:
    execution = found.call.exec
    return _of_names(found.call.op, found.description.lower(), execution.name if execution is not None else "")


@functools.lru_cache(NAMES_KNOWN)
def _of_names(op: str, group: str, kernel: str) -> Origin | None:
    """By the op itself, the name of its group, or that of its kernel."""
    if op in OPS:
        return OPS[op]
    told = [(rule, group) for rule in GROUPS if op.startswith(rule.ops)] + [(rule, kernel) for rule in KERNELS]
    return next((rule.origin for rule, name in told if re.search(rule.pattern, name)), None)


# Gradients that are reduced one by one --------------------------------------------------------------------------------


FEW: Final = 2
"""Gradients of a backward; with fewer, equal numbers can be chance."""


def _one_by_one(trace: Trace, backwards: Intervals, calls: Sequence[Call]) -> list[Call]:
    """Reductions without an origin, from the begin of a backward until the update or the next backward, in which there
    are as many as the backward accumulated gradients."""
    mine = np.array([k for k, call in enumerate(calls) if _may_be_gradient(call)], np.int64)
    found = list(calls)
    if not len(mine):
        return found
    accumulated = np.sort(trace.events.begin_ns[trace.named((ACCUMULATE,)) & trace.is_node])
    launches = np.array([calls[k].launch_at_ns for k in mine.tolist()], np.int64)
    mine, launches = (column[np.argsort(launches, kind="stable")] for column in (mine, launches))
    spans = np.array(list(_until_update(trace, backwards)), np.int64).reshape(-1, 2)
    gradients, first = (np.searchsorted(sorted_at, spans) for sorted_at in (accumulated, launches))
    count = gradients[:, 1] - gradients[:, 0]
    for nth in np.flatnonzero((count >= FEW) & (count == first[:, 1] - first[:, 0])).tolist():
        for k in mine[first[nth, 0] : first[nth, 1]].tolist():
            found[k] = dataclasses.replace(calls[k], origin=Origin.GRADIENTS.word)
    return found


def _may_be_gradient(call: Call) -> bool:
    return call.is_launch_recorded and call.origin in (None, Origin.PROGRAM.word) and call.op.startswith(REDUCTIONS)


def _until_update(trace: Trace, backwards: Intervals) -> Iterable[tuple[int, int]]:
    updates = np.sort(trace.events.begin_ns[trace.main_ranges(OPTIMIZER_STEP)])
    ends = np.append(backwards[1:, 0], trace.end_at_ns + 1) if len(backwards) else backwards[:, 0]
    nexts = np.append(updates, trace.end_at_ns + 1)[np.searchsorted(updates, backwards[:, 1])]
    return zip(backwards[:, 0].tolist(), np.minimum(ends, nexts).tolist(), strict=True)


# What was launched before the file begins -----------------------------------------------------------------------------


def _like_others(calls: Sequence[Call]) -> list[Call]:
    """A call whose launch is not in the file has the origin of all those with its op, group, bytes and dtype."""
    origins: dict[tuple[str, str, int, str], set[str | None]] = defaultdict(set)
    for call in calls:
        if call.is_launch_recorded and max(call.nbytes_in, call.nbytes_out):
            origins[_kind(call)].add(call.origin)
    return [_as_those(call, origins.get(_kind(call), set())) for call in calls]


def _kind(call: Call) -> tuple[str, str, int, str]:
    return call.op, call.group, max(call.nbytes_in, call.nbytes_out), call.dtype


def _as_those(call: Call, origins: set[str | None]) -> Call:
    if call.is_launch_recorded or call.origin is not None or len(origins) != 1:
        return call
    return dataclasses.replace(call, origin=next(iter(origins)))
