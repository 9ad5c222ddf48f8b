"""`ddptrace bench groups`: many process groups at once, and why it takes longer."""

from __future__ import annotations

from pathlib import Path

import click

from ddptrace.cli.bench_options import SIZE, common, numbers, show


@click.command()
@click.option("--groups", default="1,2,4,8", show_default=True, callback=numbers, help="How many at once.")
@click.option("--mb", type=SIZE, default=4, show_default=True, help="Size of one all-reduce.")
@click.option("--calls", type=click.IntRange(min=1), default=4, show_default=True, help="All-reduces in each group.")
@click.option("--threads", default="1,2,4", show_default=True, callback=numbers, help="Gloo's, in each group, to try.")
@click.option(
    "--try", "environments", multiple=True, metavar="NAME=VALUE",
    default=("OMP_NUM_THREADS=2", "GLOO_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo,lo"), show_default=True,
    help='Environment of one more job; repeat it for several; "" for none.',
)  # fmt: skip
@common("groups", ranks="16")
def groups(
    groups: tuple[int, ...], mb: float, calls: int, threads: tuple[int, ...], environments: tuple[str, ...],
    ranks: tuple[int, ...], backend: str | None, rounds: int, steps: int, warmup: int, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """All-reduce in many process groups at once: its time, and whether cores, queues or the wire make it grow."""
    from ddptrace.bench.groups.experiment import Options
    from ddptrace.bench.timing import Repeats

    repeats = Repeats(rounds, steps, warmup)
    nbytes = max(4, round(mb * 1e6) // 4 * 4)
    tried = tuple(filter(None, environments))
    asked = Options(ranks, backend, groups, nbytes, calls, threads, tried, repeats=repeats)
    show("groups", asked, out, as_json)
