"""`python -m tests.mutants [--mutants N] [--from SEED] [--only SEED] [--jobs N]`: makes mutants, and counts."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.mutants.bases import record
from tests.mutants.commands import COMMANDS
from tests.mutants.trial import FAILED, Tried, import_all, tried

EVERY = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--mutants", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument("--only", type=int, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--commands", type=int, default=len(COMMANDS), help="that read each mutant")
    parser.add_argument("--bases", type=Path, help="folder in which they are, or will be, recorded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bases = record(options.bases or Path(folder))
        import_all(bases)
        if options.only is not None:
            _tell(tried(options.only, bases))
            return
        began = time.monotonic()
        found = list(_all(range(options.first, options.first + options.mutants), bases, options))
    sys.exit(_count(found, time.monotonic() - began))


def _all(seeds: range, bases: Mapping[str, Path], options: argparse.Namespace) -> Iterator[Tried]:
    with ProcessPoolExecutor(options.jobs, get_context("fork")) as pool:
        each = seeds, [bases] * len(seeds), [options.commands] * len(seeds)
        for number, one in enumerate(pool.map(tried, *each, chunksize=4), start=1):
            if any(verdict.outcome == FAILED for verdict in one.verdicts):
                _tell(one)
            if number % EVERY == 0:
                print(f"{number} mutants", file=sys.stderr, flush=True)
            yield one


def _tell(one: Tried) -> None:
    print(f"\nmutant {one.seed} of {one.base}: {one.how!r}")
    for verdict in one.verdicts:
        print(f"  {verdict.command:<16} {verdict.outcome} {verdict.why}\n{_indented(verdict.more)}", flush=True)


def _indented(text: str) -> str:
    return "".join(f"      {line!r}\n" for line in text.splitlines())


def _count(found: list[Tried], seconds: float) -> int:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    causes: dict[str, list[int]] = defaultdict(list)
    for one in found:
        for verdict in one.verdicts:
            outcomes[verdict.command][verdict.outcome] += 1
            if verdict.outcome == FAILED:
                causes[f"{verdict.command}: {verdict.why}"].append(one.seed)
    print(f"\n{len(found)} mutants in {seconds:.0f} s")
    spent = Counter[str]()
    for one in found:
        spent.update({verdict.command: verdict.seconds for verdict in one.verdicts})  # type: ignore[dict-item]
    for command, counts in sorted(outcomes.items()):
        told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        print(f"  {command:<16} {told}; {spent[command]:.0f} s")
    slowest = sorted((verdict.seconds, verdict.command, one.seed) for one in found for verdict in one.verdicts)
    print("  slowest: " + ", ".join(f"{command} of {seed} {s:.1f} s" for s, command, seed in slowest[:-6:-1]))
    for cause, seeds in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"  {len(seeds):>5} × {cause}  (seeds {', '.join(map(str, seeds[:5]))})")
    return 1 if causes else 0


main()
