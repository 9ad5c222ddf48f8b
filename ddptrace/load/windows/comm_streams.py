"""Streams of a device that a program named after communication."""

from __future__ import annotations

import numpy as np

from ddptrace.load.windows.device import DeviceEvents, stream_name
from ddptrace.ops import is_named_after_communication


def comm_streams(works: DeviceEvents) -> tuple[str, ...]:
    """Those whose name in the file says so, as `DeviceWork.streams` has them."""
    lanes = [works.events.lanes[lane] for lane in np.unique(works.events.lane[works.position]).tolist()]
    named = (lane for lane in lanes if is_named_after_communication(f"{lane.name} {lane.tid}"))
    return tuple(dict.fromkeys(map(stream_name, named)))
