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
    SERVICE_VERSION,
    Resource,
)

from ddptrace.live.batch import Identity
from ddptrace.version import __version__

Value = str | int | float | bool
RUN_ID: Final = "ddptrace.run.id"  # on every span: the run's 128-bit id in hex
RANK: Final = "ddptrace.rank"  # on every span
KIND: Final = "ddptrace.span.kind"  # on every span: step, phase, bucket or collective
STEP: Final = "ddptrace.step"  # on every span of a step: the step's ordinal on its rank, from 0
PHASE: Final = "ddptrace.phase"  # on phases; on buckets and collectives the phase that launched them
RUN_NAME: Final = "ddptrace.run.name"  # what a person calls the run
JOB_ID: Final = "ddptrace.job.id"  # the scheduler's id of the job
OF_META: Final = {
    RUN_NAME: "name",
    JOB_ID: "job_id",
    "ddptrace.job.scheduler": "scheduler",
    "k8s.pod.name": "pod",
    HOST_NAME: "host",
}
"""Attributes of the resource, and the entries of `meta.json` that they are taken from."""
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
        SERVICE_VERSION: __version__,
    }
    attributes = {name: carried(value) for name, value in (own if named else own | {SERVICE_NAME: SERVICE}).items()}
    return of_environment.merge(Resource(attributes))


def _of_process(identity: Identity) -> Iterator[tuple[str, str | int]]:
    for attribute, entry in OF_META.items():
        value = identity.meta.get(entry)
        if isinstance(value, str):
            yield attribute, value
    pid = identity.meta.get("pid")
    if isinstance(pid, int):
        yield PROCESS_PID, pid
