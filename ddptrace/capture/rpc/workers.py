"""Workers by name: who this process is to the RPC framework, and who the others are."""

from __future__ import annotations

import json
from typing import Any

from torch._C._distributed_rpc import _get_current_rpc_agent

from ddptrace.record import Recorder
from ddptrace.schema import CALL_BITS, Kind


class Workers:
    """Makes call ids that no other worker makes, and reads the caller out of one: the worker's id is in its high bits.

    `name_id` are ids of interned names."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._met: set[str] = set()

    def call_id(self, count: int) -> int:
        """The id of this worker's `count`-th call. Raises RuntimeError outside init_rpc and shutdown."""
        return int(self._own().id) << CALL_BITS | count

    def caller(self, call: int) -> int:
        """The name of the worker that made the call; 0 where it is none of these workers (it may have left)."""
        try:
            self._own()
            worker = _get_current_rpc_agent().get_worker_info(call >> CALL_BITS)  # type: ignore[call-overload]
        except RuntimeError:
            return 0
        return self._recorder.intern(worker.name)

    def callee(self, worker: Any) -> int:
        return self._recorder.intern(worker if isinstance(worker, str) else worker.name)

    def _own(self) -> Any:
        """This process's worker, told in the records when first met. It may shut down and join anew."""
        own = _get_current_rpc_agent().get_worker_info()
        text = f"{own.id} {own.name}"
        if text not in self._met:
            self._met.add(text)
            self._recorder.describe(Kind.RPC_WORKER, json.dumps({"name": own.name, "id": own.id}))
            self._recorder.nudge()  # the rank can be learned: before a short job shuts down
        return own
