"""What every span and every point of a rank carries: its run, its rank, and the resource that it comes from.

Also how a value of a damaged run becomes one that OTLP can carry.
"""

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

Value = str | int | float | bool
RUN_ID: Final = "ddptrace.run.id"  # on every span: the run's 128-bit id in hex
RANK: Final = "ddptrace.rank"  # on every span
STEP: Final = "ddptrace.step"  # on every span of a step: the step's ordinal on its rank, from 0
PHASE: Final = "ddptrace.phase"  # on phases; on buckets and collectives the phase that launched them
TEXT_MAX: Final = 1_000
"""Most characters of a text. A longer one could make a request larger than any collector accepts."""
INT_MAX: Final = 2**63 - 1
SERVICE: Final = "ddptrace"
UNNAMED: Final = "unknown_service"
"""The SDK's name of a service without a name begins with this."""


def carried_text(text: str) -> str:
    """Return at most `TEXT_MAX` characters of the text, valid in UTF-8."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()


def carried(value: Value) -> Value:
    """Return the value as OTLP can carry it, even if a damaged run holds it: an integer is clipped to 64 bits, a text
    becomes that of `carried_text`."""
    if isinstance(value, str):
        return carried_text(value)
    return min(max(value, -INT_MAX - 1), INT_MAX) if isinstance(value, int) else value


def resource_of(identity: Identity) -> Resource:
    """Return the resource of one rank of one run. Its process is the one that trained, whichever process exports.

    The environment (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`) may add attributes and name the service. It does
    not decide which rank this is, because the ranks of a host usually share one environment.
    """
    of_environment = Resource.create()
    named = not str(of_environment.attributes.get(SERVICE_NAME, UNNAMED)).startswith(UNNAMED)
    own = dict(_of_process(identity)) | {
        SERVICE_INSTANCE_ID: f"{identity.run_id}-{identity.rank}",
        RUN_ID: identity.run_id,
        RANK: identity.rank,
    }
    attributes = {name: carried(value) for name, value in (own if named else own | {SERVICE_NAME: SERVICE}).items()}
    return of_environment.merge(Resource(attributes))


def _of_process(identity: Identity) -> Iterator[tuple[str, str | int]]:
    host, pid = identity.meta.get("host"), identity.meta.get("pid")
    if isinstance(host, str):
        yield HOST_NAME, host
    if isinstance(pid, int):
        yield PROCESS_PID, pid
