"""What a run is called and what it ran, in words and as the header of the report."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from html import escape
from typing import Final

from ddptrace.analysis.result import Result
from ddptrace.render.markup import label, text
from ddptrace.render.words import some_of
from ddptrace.units import counted, size

COMMIT_SHOWN: Final = 12
TAGS_SHOWN: Final = 20
SCHEDULERS: Final = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF", "torchelastic": "torchrun"}


def about_html(result: Result) -> str:
    """The run's name, tags and notes, then what it ran; nothing where nothing is known of it."""
    about = result.about
    name = f'<p class="name">{label(about.name)}</p>' if about.name else ""
    tags = "".join(f"<li>{label(tag)}</li>" for tag in about.tags[:TAGS_SHOWN])
    notes = f'<p class="notes">{text(about.notes)}</p>' if about.notes else ""
    facts = "".join(f"<li><i>{escape(term)}</i> {label(words)}</li>" for term, words in facts_of(result))
    told = (
        name,
        f'<ul class="tags">{tags}</ul>' if tags else "",
        notes,
        f'<ul class="facts">{facts}</ul>' if facts else "",
        command_html(result),
    )
    return f'<div class="about">{"".join(told)}</div>' if any(told) else ""


def command_html(result: Result) -> str:
    words = result.about.command
    return f"<pre><code>{text(shlex.join(words))}</code></pre>" if words else ""


def facts_of(result: Result) -> Iterator[tuple[str, str]]:
    """What it ran, and where."""
    about = result.about
    if about.models:
        gradients = f", {size(about.gradient_nbytes)} of gradients" if about.gradient_nbytes else ""
        yield "model", f"{some_of(about.models, 3)}{gradients}"
    if result.recorded and result.ranks:
        yield "ranks", world_words(result)
    software = [f"{name} {version}" for name, version in (("torch", about.torch), ("Python", about.python)) if version]
    if software:
        yield "software", ", ".join(software)
    if about.job_id and about.scheduler in SCHEDULERS:
        yield "job", f"{about.job_id} ({SCHEDULERS[about.scheduler]})"
    if about.commit:
        yield "commit", about.commit[:COMMIT_SHOWN]


def world_words(result: Result) -> str:
    """As in "8 on 2 hosts, NVIDIA H100, nccl"."""
    hosts = {row.host for row in result.ranks}
    devices = sorted({row.device for row in result.ranks if row.device})
    backends = sorted({name for one in result.recordings for name in one.backends})
    return ", ".join((f"{len(result.ranks)} on {counted(len(hosts), 'host')}", *devices[:3], *backends[:3]))
