"""`ddptrace export RUN`: send a run's spans and metrics to a collector, to Prometheus or to a file, live or later."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ddptrace.cli.endings import does, ending_in_order, is_done
from ddptrace.cli.say import say
from ddptrace.errors import printable

if TYPE_CHECKING:
    from ddptrace.telemetry.delivery.delivery import Delivery
    from ddptrace.telemetry.delivery.exports import Following
    from ddptrace.telemetry.delivery.targets import Targets

PATIENCE_S: Final = 30.0
"""How long to retry a destination that accepts nothing."""
SCRAPED_S: Final = 60.0
"""How long the last metrics of a followed run can still be scraped after its end: by default, Prometheus scrapes once a
minute."""
NOT_DELIVERED: Final = 5
PORT_MAX: Final = 65535


def _address(ctx: click.Context, parameter: click.Parameter, said: str | None) -> tuple[str, int] | None:
    if said is None:
        return None
    host, _, port = said.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise click.BadParameter(f"{said!r} is neither a port nor HOST:PORT; give, for example, 9464 or 0.0.0.0:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--follow", is_flag=True, help="Export while the run is being written, until it ends. RUN need not exist yet."
)
@click.option("--otlp", metavar="URL", help="Send to the OTLP collector at URL, such as http://localhost:4318.")
@click.option(
    "--protocol", type=click.Choice(["grpc", "http/protobuf"]), help="Protocol of OTLP. Port 4317 implies grpc."
)
@click.option(
    "--prometheus",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Serve metrics to Prometheus on PORT, at 127.0.0.1 or at the address HOST; 0.0.0.0 means every address.",
)
@click.option(
    "--otlp-json",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write spans and metrics to FILE as OTLP JSON, one request per line. An existing file is replaced.",
)
@click.option("--host", help="Export only the ranks that ran on this host.")
def export(
    run: Path,
    follow: bool,
    otlp: str | None,
    protocol: str | None,
    prometheus: tuple[str, int] | None,
    otlp_json: Path | None,
    host: str | None,
) -> None:
    """Send a run's spans and metrics to a collector or a file.

    Metrics can also be served to Prometheus. Exporting a run again sends the same span ids.

    Without a destination option, the OTEL_* environment variables apply. Headers, certificates, timeouts, compression
    and the sampler always come from those variables.

    \b
    Exit code:  0  everything was delivered
                1  RUN or a destination cannot be used
                5  something was not delivered, or RUN itself is incomplete
    """
    from ddptrace.errors import DdptraceError
    from ddptrace.telemetry.environment import extra

    with extra():
        from ddptrace.telemetry.delivery.targets import targets_of_environment, targets_of_options, why_none
    targets = targets_of_options(otlp, protocol, prometheus, otlp_json) or targets_of_environment(os.environ, protocol)
    if not targets:
        raise DdptraceError(why_none(os.environ))
    stop = threading.Event()
    with contextlib.ExitStack() as unless_exported:
        unless_exported.callback(targets.close)
        with ending_in_order(stop):
            export_it = _follow if follow else _export
            exported = export_it(run, targets, host, stop)
        unless_exported.pop_all()
    _end(exported, run)


@dataclass(frozen=True, slots=True)
class _Exported:
    """`is_counted`: everything that was not delivered is counted. `lacking`: sentences on what the run itself lacks."""

    deliveries: Sequence[Delivery]
    is_counted: bool
    lacking: Sequence[str | None]


def _follow(run: Path, targets: Targets, host: str | None, stop: threading.Event) -> _Exported:
    from ddptrace.telemetry.delivery import reports
    from ddptrace.telemetry.delivery.delivery import Patience
    from ddptrace.telemetry.delivery.exports import Following, RunEnded, scraped
    from ddptrace.telemetry.environment import METRICS_EVERY_S, metrics_every_s

    patience = Patience(PATIENCE_S, ended=RunEnded(run, host), stop=stop, renews=True)
    every_s = metrics_every_s(os.environ) if targets.metrics else METRICS_EVERY_S
    following = Following(run, targets, patience, _say, host=host, metrics_every_s=every_s)
    with scraped(following.totals, targets.prometheus) as server:
        _tell_begin(run, targets, None if server is None else server.url)
        following.start(lambda follower: follower.is_over, stop)
        is_counted = is_done(lambda for_s: _is_over(following, for_s, stop), stop)
        if not is_counted:
            following.give_up()
        if following.error is not None:
            raise following.error
        if not stop.is_set():
            _say(f"{run} has ended")
            stop.wait(SCRAPED_S if server else 0)
    lacking = reports.of_lines(following.lines, run), reports.of_unplaced(run) if host else None
    return _Exported(following.deliveries, is_counted, lacking)


def _is_over(following: Following, for_s: float, stop: threading.Event) -> bool:
    is_over = following.wait(for_s)
    if following.error is not None:
        stop.set()
    return is_over


def _tell_begin(run: Path, targets: Targets, url: str | None) -> None:
    places = [one.name for one in dict.fromkeys((*targets.spans, *targets.metrics))]
    if url is not None:
        places.append(url)
    awaited = "" if run.exists() else ", which does not exist yet,"
    _say(f"exporting {run}{awaited} to {' and '.join(dict.fromkeys(places))}; press Ctrl-C to stop")


def _export(run: Path, targets: Targets, host: str | None, stop: threading.Event) -> _Exported:
    from ddptrace.analyzer import analyze
    from ddptrace.cli.analyze import progress
    from ddptrace.telemetry.delivery import reports
    from ddptrace.telemetry.delivery.exports import (
        export_metrics,
        export_spans,
        identities,
        of_host,
        scraped,
        totals_of,
    )

    with progress() as tell:
        result = analyze(run, progress=tell)
    result = result if host is None else of_host(result, host)
    spans, numbers = _deliveries(targets, stop)
    totals = totals_of(result, run)

    def bring() -> None:
        export_spans(result, identities(result, run), spans)
        export_metrics(totals, numbers)

    with scraped(totals, targets.prometheus) as server:
        is_counted = does(bring, stop)
        if is_counted and server is not None:
            _say(f"serving the metrics of {run} at {server.url}; press Ctrl-C to stop")
            stop.wait()
    lacking = reports.of_result(result, run), reports.of_unplaced(run) if host else None
    return _Exported([*spans, *numbers], is_counted, lacking)


def _deliveries(targets: Targets, stop: threading.Event) -> tuple[list[Delivery], list[Delivery]]:
    """Make the deliveries of spans and of metrics.

    Those to one place share their patience, so that a place that does not answer is not retried for twice as long.
    """
    from ddptrace.telemetry.delivery.delivery import Delivery, Patience

    patience = Patience(PATIENCE_S, ended=lambda: True, stop=stop, renews=True)
    of = {one.name: patience.anew() for one in (*targets.spans, *targets.metrics)}
    hint = f"retrying for up to {PATIENCE_S:g} s; press Ctrl-C to stop"
    spans = [Delivery(one, "spans", of[one.name], _say, hint=hint) for one in targets.spans]
    return spans, [Delivery(one, "metric points", of[one.name], _say, hint=hint) for one in targets.metrics]


def _end(exported: _Exported, run: Path) -> None:
    from ddptrace.telemetry.delivery.reports import complaint, success

    for delivery in exported.deliveries:
        delivery.close()
    for sentence in success(exported.deliveries):
        _say(sentence)
    undelivered = complaint(exported.deliveries, run, is_counted=exported.is_counted)
    trouble = "; ".join(filter(None, (undelivered, *exported.lacking)))
    if trouble:
        _say(f"Error: {trouble}")
        sys.exit(NOT_DELIVERED)


def _say(sentence: str) -> None:
    """Print to stderr, since a console exporter or a file on /dev/stdout writes to stdout."""
    say(printable(sentence), err=True)
