"""`ddptrace bench …`: what things cost on the user's own machine."""

from __future__ import annotations

import click

from ddptrace.cli.bench_load import load


@click.group()
def bench() -> None:
    """Measure what things cost on this machine."""


bench.add_command(load)
