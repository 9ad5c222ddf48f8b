"""`ddptrace bench …`: what things cost on the user's own machine."""

from __future__ import annotations

import click

from ddptrace.cli.bench_buckets import buckets
from ddptrace.cli.bench_collectives import collectives
from ddptrace.cli.bench_ddp import ddp
from ddptrace.cli.bench_groups import groups
from ddptrace.cli.bench_hooks import hooks
from ddptrace.cli.bench_no_sync import no_sync
from ddptrace.cli.bench_round_robin import round_robin
from ddptrace.cli.bench_scale import scale
from ddptrace.cli.bench_unused import unused


@click.group()
def bench() -> None:
    """Measure what things cost on this machine."""


for command in (
    buckets,
    collectives,
    ddp,
    groups,
    hooks,
    no_sync,
    round_robin,
    scale,
    unused,
):
    bench.add_command(command)
