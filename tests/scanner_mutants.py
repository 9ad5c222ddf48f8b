"""Reads thousands of damaged Kineto files with the compiled scanner and with the reader in Python, its reference.

`python -m tests.scanner_mutants [COUNT]` compiles the scanner with AddressSanitizer and UBSan, and ends with 1 at the
first mutant that the two read differently. Both sanitizers end the process at once.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from ddptrace.load.kineto import columns, stream
from ddptrace.load.kineto import source as kineto_source
from ddptrace.load.kineto.scan_library import OPTIONS, compile_scanner, load_library
from tests.unit.kineto_mutants import all_seeds, mutated
from tests.unit.test_load_kineto import TRACES
from tests.unit.test_load_kineto_scanner import assert_same

COUNT: Final = 10_000
SANITIZED: Final = (*OPTIONS, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LIBRARY: Final = "DDPTRACE_SANITIZED_SCANNER"
CUTS: Final = ((301, 700), (1301, 1700), (2 << 20, 1 << 20))
"""Bytes of a piece of a file, and of a batch of its events."""


def main(count: int = COUNT) -> None:
    if LIBRARY not in os.environ:
        sys.exit(_sanitized(count))
    library = load_library(Path(os.environ[LIBRARY]))
    assert library is not None
    read = 0
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(columns, "scan_library", lambda: library)
        patch.setattr(columns.Scanner, "scan", _alone(columns.Scanner.scan))
        path, seeds, chance = Path(folder, "trace.json"), all_seeds(TRACES), random.Random(count)
        for read in range(1, count + 1):
            cut = CUTS[read % len(CUTS)]
            patch.setattr(kineto_source, "PIECE_NBYTES", cut[0])
            patch.setattr(stream, "BATCH_NBYTES", cut[1])
            path.write_bytes(mutated(chance.choice(seeds).text, chance))
            try:
                assert_same(path)
            except AssertionError:
                sys.exit(f"mutant {read}: {path.read_bytes()[:3000]!r}")
    print(f"{read:,} mutants: the same columns or the same refusal from both readers, no complaint of a sanitizer")


def _alone(scan):
    """Give the scanner each part in memory of its own, so that a sanitizer sees each byte that is read behind it."""
    return lambda self, text, begin, end: scan(self, bytearray(text[begin:end]), 0, end - begin)


def _sanitized(count: int) -> int:
    """Run this module again with a sanitized scanner, and return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "scan.so")
        failure = compile_scanner(library, SANITIZED)
        assert failure is None, failure
        asan = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True).strip()
        changed = {
            LIBRARY: str(library),
            "LD_PRELOAD": asan,
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",  # or the sanitizer would not see where Python's buffers end
        }
        command = [sys.executable, "-m", "tests.scanner_mutants", str(count)]
        return subprocess.run(command, env=os.environ | changed, check=False).returncode


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
