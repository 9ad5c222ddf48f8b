"""Kernels that may communicate, which no rule takes: the options that would name them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.rank_facts import RankFacts
from ddptrace.findings import COMM_KERNEL_SUSPECTED, Finding
from ddptrace.units import duration, named

MOST_NAMED: Final = 4  # kernels and places


def comm_kernel_findings(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """One sentence for all ranks together."""
    some = [rank for rank in ranks if rank.comm_like]
    if not some:
        return
    by_kernel: Counter[str] = Counter()
    by_place: Counter[str] = Counter()
    for kernel in (kernel for rank in some for kernel in rank.comm_like):
        by_kernel[pattern_of(kernel.kernel)] += kernel.device_ns
        by_place[kernel.where] += kernel.device_ns
    where = named("rank", [rank.rank for rank in some])
    options = " ".join(f"--comm-kernel '{pattern}'" for pattern, _ in by_kernel.most_common(MOST_NAMED))
    left = len(by_kernel) - MOST_NAMED
    more = f" (and {left} more)" if left > 0 else ""
    places = ", ".join(place for place, _ in by_place.most_common(MOST_NAMED))
    yield COMM_KERNEL_SUSPECTED(
        where,
        f"On {where}, kernels that no rule knows run for {duration(by_kernel.total() / len(some))} a rank in ranges or"
        f" on streams that are named after communication ({places}). They count as compute here. If they communicate,"
        f" name them: {options}{more}.",
    )


def pattern_of(kernel: str) -> str:
    """Find the part of the kernel's name to give to `--comm-kernel`: the function with its namespaces. Of
    `void mine::ep::send<8>(int)`: mine::ep::send."""
    bare = re.split("[<(]", kernel.rpartition("(anonymous namespace)::")[2], maxsplit=1)[0].strip()
    words = re.findall(r"[\w:]+", bare) or re.findall(r"\w+", kernel)
    return words[-1].strip(":") if words else re.escape(kernel[:40])
