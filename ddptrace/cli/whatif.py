"""`ddptrace whatif RUN`: predict the step under other settings, from one recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddptrace.cli.say import say_json, show

if TYPE_CHECKING:
    from ddptrace.analysis.whatif.answer import AnyPredictor
    from ddptrace.analysis.whatif.predict import Predictor


def _caps(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[float, ...], ...]:
    """Read each value as one cap, or as caps of the first bucket, the second, and so on."""
    try:
        found = tuple(tuple(float(cap) for cap in value.split(",")) for value in values)
    except ValueError:
        raise click.BadParameter(
            "give caps in MiB, such as 25, or 1,25 for a first bucket of 1 and further ones of 25"
        ) from None
    if any(not 0 < cap < float("inf") for caps in found for cap in caps):
        raise click.BadParameter("give caps in MiB above zero")
    return found


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--caps",
    multiple=True,
    callback=_caps,
    metavar="MIB[,MIB…]",
    help="Bucket cap in MiB, or caps of the first bucket, the second and so on. Repeatable.",
)
@click.option(
    "--order",
    type=click.Choice(["ready", "definition"]),
    default="ready",
    show_default=True,
    help="Order of parameters in buckets.",
)
@click.option("--ranks", type=click.IntRange(min=1), help="Number of ranks to simulate, in a ring of the same links.")
@click.option(
    "--bandwidth",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    metavar="FACTOR",
    help="Scale link bandwidth by this factor.",
)
@click.option(
    "--latency", type=click.FloatRange(min=0), default=1.0, metavar="FACTOR", help="Scale link latency by this factor."
)
@click.option("--fp16", is_flag=True, help="Send gradients in half precision.")
@click.option("--bf16", is_flag=True, help="Send gradients as bfloat16.")
@click.option(
    "--accumulate",
    type=click.IntRange(min=1),
    metavar="N",
    help="Update once per N backward passes, the others in no_sync().",
)
@click.option(
    "--groups", type=click.IntRange(min=1), default=1, metavar="N", help="Number of process groups that take turns."
)
@click.option("--even", type=int, metavar="RANK", help="Make this rank as fast as the median of the others.")
@click.option("--perfect-overlap", is_flag=True, help="Assume that all gradients are ready when backward begins.")
@click.option("--free-network", is_flag=True, help="Assume that communication takes no time.")
@click.option(
    "--host",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    metavar="FACTOR",
    help="Scale the speed of the host by this factor. Of a GPU.",
)
@click.option("--free-data", is_flag=True, help="Assume that fetching a batch takes no time. Of a GPU.")
@click.option(
    "--schedule", type=click.Choice(["gpipe", "1f1b", "interleaved"]), help="Schedule of a pipeline of stages."
)
@click.option(
    "--microbatches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Microbatches of a pipeline in each step, of the recorded size.",
)
@click.option(
    "--forward-prefetch",
    type=click.IntRange(min=0),
    metavar="N",
    help="FSDP units gathered ahead in forward (set_modules_to_forward_prefetch).",
)
@click.option(
    "--backward-prefetch",
    type=click.IntRange(min=0),
    metavar="N",
    help="FSDP units gathered ahead in backward (set_modules_to_backward_prefetch).",
)
@click.option(
    "--unshard-async-op/--no-unshard-async-op",
    default=None,
    help="Whether the host goes on while FSDP units are gathered (_set_unshard_async_op).",
)
@click.option(
    "--reshard-after-forward/--no-reshard-after-forward",
    default=None,
    help="Whether FSDP units free their gathered parameters after forward (fully_shard).",
)
@click.option(
    "--unit-size",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    metavar="FACTOR",
    help="Size of FSDP units: 2 puts each two into one, 0.5 halves each.",
)
@click.option(
    "--separate-reduce-scatter-group",
    is_flag=True,
    help="Give reductions of FSDP units a process group (set_separate_reduce_scatter_group).",
)
@click.option(
    "--reduce-dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type in which FSDP reduces gradients (MixedPrecisionPolicy).",
)
@click.option(
    "--scale", is_flag=True, help="Also simulate 8 to 4,096 ranks, with ring, tree and hierarchical all-reduce."
)
@click.option(
    "--per-host",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Ranks per host that share a link, for --scale.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
def whatif(
    run: Path,
    caps: tuple[tuple[float, ...], ...],
    order: str,
    ranks: int | None,
    bandwidth: float,
    latency: float,
    fp16: bool,
    bf16: bool,
    accumulate: int | None,
    groups: int,
    even: int | None,
    perfect_overlap: bool,
    free_network: bool,
    host: float,
    free_data: bool,
    schedule: str | None,
    microbatches: int | None,
    forward_prefetch: int | None,
    backward_prefetch: int | None,
    unshard_async_op: bool | None,
    reshard_after_forward: bool | None,
    unit_size: float,
    separate_reduce_scatter_group: bool,
    reduce_dtype: str | None,
    scale: bool,
    per_host: int,
    as_json: bool,
) -> None:
    """Predict the step time of a run under other settings.

    Every prediction has an interval. All options together describe one setting; several --caps make one setting each.
    Without options, whatif predicts a standard list: seven bucket caps, the fp16 hook, accumulation, faster links, more
    ranks, perfect overlap and a free network. RUN may also be traces of a GPU by torch.profiler, or a run with profiler
    windows of a GPU: then the list is a faster host, free data loading, late ranks, and the network. Of a pipeline it
    is schedules and numbers of microbatches. Of FSDP units it is how far ahead they are gathered, their size, and
    whether parameters stay after forward, each with the peak memory of a rank.
    """
    from ddptrace.analysis.whatif.answer import answer, scaling, usual
    from ddptrace.analysis.whatif.tables import Setting
    from ddptrace.cli.analyze import progress
    from ddptrace.predictor import predictor
    from ddptrace.render.whatif.answers import scale_lines, whatif_text
    from ddptrace.render.whatif.words import setting_words

    more = {
        "order": order,
        "ranks": ranks,
        "bandwidth": bandwidth,
        "latency": latency,
        "fp16": fp16,
        "bf16": bf16,
        "accumulate": accumulate,
        "groups": groups,
        "even": even,
        "perfect_overlap": perfect_overlap,
        "free_network": free_network,
        "host": host,
        "free_data": free_data,
        "schedule": schedule,
        "microbatches": microbatches,
        "forward_prefetch": forward_prefetch,
        "backward_prefetch": backward_prefetch,
        "unshard_async_op": unshard_async_op,
        "reshard_after_forward": reshard_after_forward,
        "unit_size": unit_size,
        "separate_reduce_scatter_group": separate_reduce_scatter_group,
        "reduce_dtype": reduce_dtype,
    }
    asked = [Setting(caps=one, **more) for one in caps or (None,)]  # type: ignore[arg-type]
    with progress() as tell:
        found = predictor(run, progress=tell)
    scaled = _of_buckets(found) if scale else None
    settings = {setting_words(one): one for one in asked} if asked != [Setting()] else usual(found)
    answers = answer(found, settings)
    if not as_json:
        show(whatif_text(answers))
    rows = None if scaled is None else scaling(scaled, asked[0], per_host=per_host)
    if as_json:
        more_keys = {} if rows is None else {"scale": rows.to_dicts()}
        say_json(answers.to_json_dict() | more_keys)
    elif rows is not None:
        show("\n" + "\n".join((*scale_lines(rows, setting_words(asked[0]), per_host), "")))


def _of_buckets(found: AnyPredictor) -> Predictor:
    """Refuse what only the model of training on CPUs predicts."""
    from ddptrace.analysis.whatif.predict import Predictor
    from ddptrace.errors import DdptraceError

    if not isinstance(found, Predictor):
        raise DdptraceError("--scale simulates many ranks of a data-parallel module on CPUs, and this run has none")
    return found
