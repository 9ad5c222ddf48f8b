"""`ddptrace bench …`: what things cost on the user's own machine."""

from __future__ import annotations

import click

from ddptrace.cli.bench_blame import blame
from ddptrace.cli.bench_buckets import buckets
from ddptrace.cli.bench_collectives import collectives
from ddptrace.cli.bench_ddp import ddp
from ddptrace.cli.bench_diff import diff
from ddptrace.cli.bench_groups import groups
from ddptrace.cli.bench_hooks import hooks
from ddptrace.cli.bench_load import load
from ddptrace.cli.bench_no_sync import no_sync
from ddptrace.cli.bench_overhead import overhead
from ddptrace.cli.bench_ranks import ranks
from ddptrace.cli.bench_round_robin import round_robin
from ddptrace.cli.bench_scale import scale
from ddptrace.cli.bench_unused import unused
from ddptrace.cli.bench_whatif import whatif


@click.group()
def bench() -> None:
    """Measure what things cost on this machine."""


for command in (
    blame,
    buckets,
    collectives,
    ddp,
    diff,
    groups,
    hooks,
    load,
    no_sync,
    overhead,
    ranks,
    round_robin,
    scale,
    unused,
    whatif,
):
    bench.add_command(command)
