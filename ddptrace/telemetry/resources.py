"""What one rank's spans and metrics are said to come from, where the provider is ddptrace's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from opentelemetry.sdk.resources import (
    HOST_NAME,
    PROCESS_PID,
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    Resource,
)

from ddptrace.live.batch import Identity
from ddptrace.telemetry.attributes import RANK, RUN_ID, carried

SERVICE: Final = "ddptrace"
UNNAMED: Final = "unknown_service"
"""What the SDK calls a service that nobody has named begins with this."""


def resource_of(identity: Identity) -> Resource:
    """One resource for each rank of each run. Its process is the one that trained, whoever sends this.

    The environment (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`) adds what it wants and names the service; which
    rank this is, it does not say: all ranks of a host mostly share it.
    """
    around = Resource.create()
    named = not str(around.attributes.get(SERVICE_NAME, UNNAMED)).startswith(UNNAMED)
    own = dict(_of_process(identity)) | {
        SERVICE_INSTANCE_ID: f"{identity.run_id}-{identity.rank}", RUN_ID: identity.run_id, RANK: identity.rank,
    }  # fmt: skip
    told = {name: carried(value) for name, value in (own if named else own | {SERVICE_NAME: SERVICE}).items()}
    return around.merge(Resource(told))


def _of_process(identity: Identity) -> Iterator[tuple[str, str | int]]:
    host, pid = identity.meta.get("host"), identity.meta.get("pid")
    if isinstance(host, str):
        yield HOST_NAME, host
    if isinstance(pid, int):
        yield PROCESS_PID, pid
