"""`ddptrace compile`: the part of tracing that is worth compiling, compiled."""

from __future__ import annotations

import click

from ddptrace.cli.say import say
from ddptrace.errors import CompileError, printable


@click.command()
def compile() -> None:
    """Make tracing cheaper: compile what records the buckets of stock DDP, once for each torch.

    It takes some ten seconds and a C++ compiler. From then on every trace with this torch on this machine uses it, and
    records the same. Without it Python is called for every bucket, which is most of what tracing costs.
    """
    try:
        from ddptrace.capture.collectives.compiled import compile_library
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CompileError("it is compiled for a torch, and none is installed: pip install 'ddptrace[torch]'") from None
    path = compile_library()
    say(f"{printable(path)}\nTraces use it from now on; remove that file to have Python record all buckets again.")
