"""`ddptrace compile`: compile the part of tracing that is slow in Python."""

from __future__ import annotations

import click

from ddptrace.cli.say import say
from ddptrace.errors import needing_torch, printable


@click.command()
def compile() -> None:
    """Compile a part of ddptrace to make tracing cheaper.

    Compiles the recorder of stock DDP's buckets, once per torch version, in about ten seconds and with a C++ compiler.
    Afterwards every trace with this torch on this machine uses the compiled library; its records are the same. Without
    the library, tracing calls Python for every bucket, which is most of its cost.
    """
    with needing_torch("ddptrace compile"):
        from ddptrace.capture.collectives.compiled import compile_library
    path = compile_library()
    say(f"{printable(path)}\nTraces use this library from now on; delete it to record buckets in Python again.")
