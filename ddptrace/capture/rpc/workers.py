"""RPC workers by name: this process and the others."""

from __future__ import annotations

import json
from typing import Any

from torch._C._distributed_rpc import _get_current_rpc_agent

from ddptrace.record import Recorder
from ddptrace.schema import CALL_BITS, Kind


class Workers:
    """Makes call ids that no other worker makes, and reads the caller from one: the worker's id is in its high bits.

    Names of workers are returned as string ids."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._met: set[str] = set()

    def call_id(self, count: int) -> int:
        """The id of this worker's `count`-th call. Raises RuntimeError outside init_rpc and shutdown."""
        return int(self._own().id) << CALL_BITS | count

    def caller(self, call: int) -> int:
        """Return the name of the worker that made the call; 0 if it is none of the known workers (it may have left)."""
        try:
            self._own()
            worker = _get_current_rpc_agent().get_worker_info(call >> CALL_BITS)  # type: ignore[call-overload]
        except RuntimeError:
            return 0
        return self._recorder.intern(worker.name)

    def callee(self, worker: Any) -> int:
        return self._recorder.intern(worker if isinstance(worker, str) else worker.name)

    def _own(self) -> Any:
        """Return this process's worker, and record it the first time. It may shut down and join again."""
        own = _get_current_rpc_agent().get_worker_info()
        text = f"{own.id} {own.name}"
        if text not in self._met:
            self._met.add(text)
            self._recorder.describe(Kind.RPC_WORKER, json.dumps({"name": own.name, "id": own.id}))
            self._recorder.nudge()  # the rank can be learned: before a short job shuts down
        return own
