"""Which kernels communicate, by name; and which collective a name tells, where it does.

A user may give regular expressions for names. Python's `re` tries every way in which one can be read and knows no time
limit. Where a part that may be long or short is itself repeated, there is no end of ways: (a+)+x on 40 times "a" has
2^40 of them. Such expressions are refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.errors import DdptraceError
from ddptrace.load.kineto.events import Category, KinetoEvents
from ddptrace.ops import FAMILIES


@dataclass(frozen=True, slots=True)
class CommRule:
    """Kernels in whose name `pattern` (a regular expression, in any case) is found communicate; `op` is what they do,
    None where only the name itself may tell. Of a name, the first LONGEST_NAME characters are looked at."""

    pattern: str
    op: str | None = None


DEFAULT_RULES: Final = (
    # NCCL and those made after it: ncclDevKernel_AllReduce_…, ncclKernel_SendRecv_…, mscclKernel_…
    CommRule(r"(?<![a-z])(?:nccl|rccl|msccl)"),
    # DeepEP and those made after it: deep_ep::intranode::dispatch<…>, dpsk::ep::internode::cached_notify<…>;
    # their layout kernels do not communicate
    CommRule(r"(?:_|::)ep::(?:intranode|internode|internode_ll)::(?:cached_)?notify", "notify"),
    CommRule(r"(?:_|::)ep::(?:intranode|internode|internode_ll)::dispatch\b", "dispatch"),
    CommRule(r"(?:_|::)ep::(?:intranode|internode|internode_ll)::combine\b", "combine"),
    CommRule(r"(?:_|::)ep::(?:intranode|internode|internode_ll)::barrier\b", "barrier"),
    # MORI: EpDispatchIntraNodeKernel, EpCombineInterNodeKernel…
    CommRule(r"(?<![a-z])EpDispatch(?:Intra|Inter)Node", "dispatch"),
    CommRule(r"(?<![a-z])EpCombine(?:Intra|Inter)Node", "combine"),
    # vLLM, SGLang, aiter: cross_device_reduce_1stage, cross_device_reduce_2stage_write_mode
    CommRule(r"cross_device_reduce_[12]stage", "all_reduce"),
    # aiter: reduce_scatter_cross_device_store, cross_device_all_gather; QuickReduce: allreduce_prototype_twoshot
    CommRule(r"reduce_scatter_cross_device|cross_device_reduce_scatter", "reduce_scatter"),
    CommRule(r"cross_device_all_?gather", "all_gather"),
    CommRule(r"(?<![a-z])allreduce_prototype_(?:one|two)shot", "all_reduce"),
    # torch's symmetric memory: one_shot_all_reduce_kernel, two_shot_all_reduce_kernel_inplace, multimem_…
    CommRule(r"(?<![a-z])(?:one_shot|two_shot|multimem)(?:_one_shot)?_all_reduce", "all_reduce"),
    CommRule(r"(?<![a-z])multimem_all_gather", "all_gather"),
    # TensorRT-LLM's, also in vLLM and SGLang: oneShotAllReduceKernel, allreduce_fusion_kernel_oneshot_lamport
    CommRule(r"(?:one|two)ShotAllReduce", "all_reduce"),
    CommRule(r"(?<![a-z])mnnvl_lamport_all_gather", "all_gather"),
    CommRule(r"(?<![a-z])mnnvl_lamport_reduce_scatter", "reduce_scatter"),
    CommRule(r"allreduce_fusion_kernel_(?:one|two)shot", "all_reduce"),
    # torch on NVSHMEM: allToAllV<…>, exchangeSplitAndOffset
    CommRule(r"(?<![a-z])nvshmem"),
    CommRule(r"(?<![a-z])(?:allToAllV|exchangeSplitAndOffset)\b", "all_to_all"),
    # oneCCL on XPU: oneccl_allreduce_pcie<half, …>, oneccl_allgatherv_pcie, oneccl_kernel_memcpy_bytes
    CommRule(r"(?<![a-z])oneccl_"),
    # HCCL on NPU: hcom_allReduce__606_0_1, hcom_reduceScatter_AicpuKernel_503_490_1
    CommRule(r"(?<![a-z])hcom_(?:all|reduce|broadcast|scatter|gather|send|recv|receive|batch|barrier)"),
)
"""Searched in the kernel's own name only: a type among its template arguments or parameters says nothing about it."""
UNKNOWN_OP: Final = "unknown"
LONGEST_NAME: Final = 1000  # characters of a kernel's name in which a rule is searched
NAMES_KNOWN: Final = 1 << 16  # and rules: many events have one name, which is searched once
MOST_BRACKETS: Final = 100  # of a regular expression: Python compiles nested ones by recursion
NO_REGEX: Final = re.compile(r"[^\\.^$*+?{}\[\]|()]+")  # text without any sign that means something in one
HOW: Final = "give a part of the kernels' names, as REGEX or REGEX=OP: my_all_reduce or my_all_reduce=all_reduce"


def parse_rule(text: str) -> CommRule:
    """`REGEX` or `REGEX=OP`, as a user gives it. Raises DdptraceError for what is neither.

    What stands behind an equals sign can belong to the expression, as in `(?<=x)y`; plain words with anything but
    letters, digits and underscores between them are neither.
    """
    pattern, equals, op = text.rpartition("=")
    if equals and NO_REGEX.fullmatch(op) and not re.fullmatch(r"\w+", op):
        raise DdptraceError(f"{_short(op)} names no collective, which is one word; {HOW}")
    if not equals or (pattern and not re.fullmatch(r"\w+", op)):
        pattern, op = text, ""
    if not pattern.strip():
        raise DdptraceError(f"{_short(text)} names no kernels; {HOW}")
    _try(pattern)
    return CommRule(pattern, op or None)


def _try(pattern: str) -> None:
    if pattern.count("(") > MOST_BRACKETS:
        raise DdptraceError(f"{_short(pattern)} has more than {MOST_BRACKETS} brackets; {HOW}")
    try:
        re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise DdptraceError(f"{_short(pattern)} is no regular expression ({error}); {HOW}") from error
    fault = endless(pattern)
    if fault is not None:
        raise DdptraceError(f"{_short(pattern)} {fault}, and could take for ever on some name; {HOW}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "…")


def rule_of(name: str, rules: Sequence[CommRule]) -> CommRule | None:
    """The first rule that knows the kernel, a user's before the defaults; None: it does not communicate."""
    return _first(rules, name) or _first(DEFAULT_RULES, _function(name))


def op_named(name: str, rules: Sequence[CommRule]) -> str:
    """What a communication kernel's name alone tells of the collective."""
    rule = rule_of(name, rules)
    if rule is not None and rule.op is not None:
        return rule.op
    function = _function(name).lower()
    named = (family.name for family in FAMILIES if family.kernel is not None and re.search(family.kernel, function))
    return next(named, UNKNOWN_OP)


def _first(rules: Sequence[CommRule], text: str) -> CommRule | None:
    near = text[:LONGEST_NAME]
    return next((rule for rule in rules if _is_in(rule.pattern, near)), None)


@functools.lru_cache(NAMES_KNOWN)
def _is_in(pattern: str, name: str) -> bool:
    return re.search(pattern, name, re.IGNORECASE) is not None


def _function(name: str) -> str:
    """Without template arguments and parameters."""
    bare = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    return re.split("[<(]", bare, maxsplit=1)[0]


def communication_kernels(events: KinetoEvents, rules: Sequence[CommRule] = ()) -> NDArray[np.bool_]:
    """By what the kernel's arguments say, or by its name. `rules`: beside the default ones."""
    is_kernel: NDArray[np.bool_] = events.category == Category.KERNEL
    used = np.unique(events.name[is_kernel]).tolist()
    known = [i for i in used if rule_of(events.names[i], rules) is not None]
    return is_kernel & (np.isin(events.name, known) | events.is_collective)


# Regular expressions that a user gives --------------------------------------------------------------------------------


MOST_REPEATS: Final = 3
"""Each multiplies the ways by the length of the name."""
MOST_OPTIONS: Final = 8
"""Each doubles them."""
SIGNS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P?[<=!:]*|(?:[*+?]|\{\d*,?\d*\})[?+]?|.", re.DOTALL)
QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{\d*,?\d*\})[?+]?")


def endless(pattern: str) -> str | None:
    """What about an expression, which compiles, makes it one of these, as the end of a sentence; None: nothing."""
    signs = SIGNS.findall(pattern)
    quantifiers = [sign for sign in signs if QUANTIFIER.fullmatch(sign)]
    options = sum(sign.startswith("?") for sign in quantifiers)
    if options > MOST_OPTIONS:
        return f"has more than {MOST_OPTIONS} optional parts"
    if len(quantifiers) - options > MOST_REPEATS:
        return f"has more than {MOST_REPEATS} repetitions"
    if any(_repeated_parts(signs)):
        return "repeats a part that can itself be read in several ways"
    if any(_is_repeat(one) and _is_repeat(two) for one, two in zip(signs[1:], signs[3:], strict=False)):
        return "has two repetitions beside each other"
    return None


def _repeated_parts(signs: list[str]) -> Iterator[bool]:
    """Of each repetition, whether what it repeats has several ways."""
    varies = [False]  # by group that is open: whether what it holds so far does
    part = False  # what stands before
    for sign in signs:
        if QUANTIFIER.fullmatch(sign):
            yield part and _is_repeat(sign)
            varies[-1] = True
        elif sign.startswith("("):
            varies.append(False)
        elif sign == "|":
            varies[-1] = True
        part = sign == ")" and len(varies) > 1 and varies.pop()
        varies[-1] |= part


def _is_repeat(sign: str) -> bool:
    return QUANTIFIER.fullmatch(sign) is not None and not sign.startswith("?")
