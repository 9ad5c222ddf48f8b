"""`ddptrace bench …`: what things cost on the user's own machine."""

from __future__ import annotations

import click

from ddptrace.cli.bench_buckets import buckets
from ddptrace.cli.bench_load import load


@click.group()
def bench() -> None:
    """Measure what things cost on this machine."""


for command in (buckets, load):
    bench.add_command(command)
