"""Logs of NCCL_DEBUG=INFO with NCCL_DEBUG_SUBSYS=TUNING: which algorithm and protocol NCCL chose for each collective.

node-01:631871:631871 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..31}
node-01:631871:631871 [0] NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL nchannels 8 nthreads 512
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from ddptrace.load.tables import NcclChoice

LINE: Final = re.compile(
    rb"NCCL INFO (?P<function>\w{2,40})(?: \[(?P<way>[\w ]{1,40})\])?: (?P<nbytes>\d{1,18}) Bytes -> "
    rb"(?P<choice>.{1,200})"
)
ALGORITHM: Final = re.compile(
    r"Algo (?P<algorithm>\w+) proto (?P<protocol>\w+) channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,4})\.\.(?P<high>\d{1,4})\}"
)
KERNEL: Final = re.compile(r"Kernel (?P<kernel>\w+) nchannels (?P<channels>\d{1,4})")


def choices(lines: Iterable[bytes]) -> Counter[NcclChoice]:
    """Count each choice that a log tells. Other lines, and what newer versions write otherwise, are passed over."""
    found: Counter[NcclChoice] = Counter()
    for line in lines:
        told = LINE.search(line)
        if told is not None:
            choice = _choice(told["choice"].decode(errors="replace"), (told["way"] or b"").decode())
            found[NcclChoice(told["function"].decode(), int(told["nbytes"]), *choice)] += 1
    return found


def _choice(text: str, way: str) -> tuple[str, str, int | None]:
    """Algorithm, protocol and number of channels."""
    usual, kernel = ALGORITHM.match(text), KERNEL.match(text)
    if usual is not None:
        return usual["algorithm"], usual["protocol"], int(usual["high"]) - int(usual["low"]) + 1
    if kernel is not None:
        return f"{way} {kernel['kernel']}".strip(), "", int(kernel["channels"])
    return way or text.strip(), "", None
