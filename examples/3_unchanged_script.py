"""Trace a script that exists already, without a change to it, with a profiler window.

    torchrun --nproc-per-node 2 examples/3_unchanged_script.py run/unchanged
    ddptrace analyze run/unchanged

`plain_ddp.py` beside this file is run as it stands, the context around it. After five steps torch.profiler looks at
three of them, so that for these the analysis knows when each bucket's communication really ran and what was computed
meanwhile (evidence "backend"); for the other steps it says what rests on less.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

import torch

import ddptrace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="run/unchanged", help="run directory; its old run is replaced")
    out = parser.parse_args().out

    window = torch.profiler.schedule(wait=5, warmup=1, active=3, repeat=1)
    with ddptrace.trace(out, profile=window, overwrite=True):
        runpy.run_path(str(Path(__file__).with_name("plain_ddp.py")), run_name="__main__")


if __name__ == "__main__":
    main()
