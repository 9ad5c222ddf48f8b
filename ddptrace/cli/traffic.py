"""`ddptrace traffic RUN`: bytes per step by sender and receiver, and what DDP should have sent."""

from __future__ import annotations

import click

from ddptrace.cli.say import say_json, show


@click.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
def traffic(run: tuple[str, ...], as_json: bool) -> None:
    """Show how many bytes a run communicates per step.

    Counts them by collective, process group and pair of RPC workers. RUN is a run directory of ddptrace.trace, or any
    files and folders of torch.profiler traces.
    """
    from ddptrace.analysis.traffic.digest import traffic_report
    from ddptrace.analyzer import analyze
    from ddptrace.cli.analyze import progress

    with progress() as tell:
        result = analyze(run, progress=tell)
    report = traffic_report(result)
    if as_json:
        say_json(report)
    else:
        from ddptrace.render.traffic.pages import traffic_text

        show(traffic_text(result, report))
