"""Dumps of the Flight Recorder that somebody damaged or made to do harm, and what `ddptrace diagnose` makes of them.

`python -m tests.mutants.dumps --mutants 2000` makes and counts as many, and reads every hostile pickle.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from ddptrace.cli import main as ddptrace
from ddptrace.errors import printable
from tests.mutants.ways import JSON_WAYS, copied, flipped, lengthened, removed, renamed, replaced, swapped, truncated
from tests.simulated_job import Fault, stopped_by, write, write_json

ANSWERED, REFUSED = "answered", "refused in one sentence"
ANSWERS: Final = (0, 3, 4)
KEPT: Final = 4
"""Calls of each rank in the dumps that are spoilt: few, so that a change is not lost among them."""
DEEP: Final = 100_000
FILE_WAYS: Final = (flipped, truncated, lengthened, removed, swapped, copied, renamed, replaced)


def bases(folder: Path) -> dict[str, Path]:
    """A job that a rank brought to a stop, as pickles and as JSON, by name."""
    job = stopped_by({5: (Fault.LOCK_GIL, 60), 9: (Fault.GPU_ERROR, 61)})
    dumps = job.dumps()
    for dump in dumps.values():
        dump["entries"] = dump["entries"][-KEPT:]
    return {"pickles": write(dumps, folder / "pickles"), "JSON": write_json(dumps, folder / "JSON")}


# Mutants --------------------------------------------------------------------------------------------------------------


def mutant(seed: int, base: Path, folder: Path) -> str:
    """Copy the dumps of `base` to `folder` and spoil them, by seed. Returns how."""
    chance = random.Random(seed)
    shutil.copytree(base, folder)
    return "; ".join(_spoilt(folder, chance) for _ in range(chance.choice((1, 1, 2, 4))))


def _spoilt(folder: Path, chance: random.Random) -> str:
    dumps = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    try:
        if dumps and chance.random() < 0.7:
            return _value_changed(chance.choice(sorted(dumps)), chance)
        return chance.choice(FILE_WAYS)(folder, chance)
    except (OSError, ValueError, IndexError, KeyError, RecursionError, EOFError, pickle.UnpicklingError) as error:
        return f"nothing ({type(error).__name__})"


def _value_changed(path: Path, chance: random.Random) -> str:
    """One value within the dump, or one of its keys."""
    is_json = path.suffix == ".json"
    content = json.loads(path.read_text() if is_json else json.dumps(pickle.loads(path.read_bytes())))
    what, text = chance.choice(JSON_WAYS)(content, chance)
    if is_json:
        path.write_text(text, errors="surrogatepass")
    else:
        path.write_bytes(pickle.dumps(json.loads(text), protocol=chance.choice((2, 3, 4, 5))))
    return f"{path.name}: {what}"


def outcome(folder: Path) -> str:
    """Diagnose the dumps, for people and as JSON. Returns ANSWERED, REFUSED, or what is wrong with the answer."""
    for options in ([], ["--json"]):
        done = CliRunner().invoke(ddptrace, ["diagnose", str(folder), *options])
        told = done.stdout + done.stderr
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            return f"{type(done.exception).__name__}: {done.exception}"
        if "Traceback" in told or any(line != printable(line) for line in done.stdout.split("\n")):
            return f"it says what no terminal should show: {told[:200]!r}"
        if done.exit_code not in (1, *ANSWERS):
            return f"exit code {done.exit_code}"
        is_sentence = not done.stdout and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1
        if done.exit_code == 1 and not is_sentence:
            return f"no single sentence: {told[:200]!r}"
        if options and done.exit_code in ANSWERS:
            json.loads(done.stdout)
    return ANSWERED if done.exit_code in ANSWERS else REFUSED


# Pickles that would do harm -------------------------------------------------------------------------------------------


def hostile_pickles(flag: Path) -> Iterator[tuple[str, bytes]]:
    """Yield pickles that would make a file `flag` if they ran, or take memory, time or the process; each alone, as the
    entries of a dump, and as a field of one of its entries."""
    for name, body in _bodies(str(flag)).items():
        yield name, b"\x80\x04" + body + b"."
        yield f"{name}, as the entries", _in_dump(body)
        yield f"{name}, in an entry", _in_dump(b"](}(" + _text("profiling_name") + body + b"ue")


def _in_dump(body: bytes) -> bytes:
    config = _text("pg_config") + b"}"
    return b"\x80\x04}(" + _text("version") + _text("2.9") + config + _text("entries") + body + b"u."


def _bodies(flag: str) -> dict[str, bytes]:
    touch = _text(f"touch {flag}")
    python = _text(f"open({flag!r}, 'w').close()")
    call = lambda function, argument: function + argument + b"\x85R"  # noqa: E731
    stacked = lambda module, name: _text(module) + _text(name) + b"\x93"  # noqa: E731
    huge = struct.pack("<Q", 2**62)
    return {
        "a call of os.system": call(b"cos\nsystem\n", touch),
        "a call of posix.system": call(b"cposix\nsystem\n", touch),
        "a call of os.system, of protocol 4": call(stacked("os", "system"), touch),
        "a call of eval": call(b"cbuiltins\neval\n", python),
        "a call of exec": call(b"cbuiltins\nexec\n", python),
        "a call of eval, of protocol 4": call(stacked("builtins", "eval"), python),
        "a call of a method's name": call(stacked("builtins", "str.upper"), python),
        "a call of getattr": stacked("builtins", "getattr") + stacked("os", "x") + _text("system") + b"\x86R",
        "a call of __import__": call(stacked("builtins", "__import__"), _text("antigravity")),
        "a call of open": stacked("builtins", "open") + _text(flag) + _text("w") + b"\x86R",
        "a call of subprocess": call(stacked("subprocess", "getoutput"), touch),
        "a call of torch": call(stacked("torch._utils", "_rebuild_tensor_v2"), b")"),
        "a call of torch's lists": call(b"ctorch.jit._pickle\nbuild_intlist\n", b"]"),
        "an instance by INST": b"(" + touch + b"ios\nsystem\n",
        "an instance by OBJ": b"(" + stacked("os", "system") + touch + b"o",
        "an instance by NEWOBJ": stacked("os", "system") + touch + b"\x85\x81",
        "an instance by NEWOBJ_EX": stacked("os", "system") + touch + b"\x85}\x92",
        "a state by BUILD": stacked("collections", "OrderedDict") + b")R}b",
        "a name alone": stacked("os", "system"),
        "a name that is nowhere": stacked("no.such.module", "x"),
        "an extension by EXT1": b"\x82\x01",
        "an extension by EXT2": b"\x83\x01\x00",
        "an extension by EXT4": b"\x84\x01\x00\x00\x00",
        "a persistent id": b"Pos.system\n",
        "a binary persistent id": touch + b"Q",
        "an out-of-band buffer": b"\x97\x98",
        "lists, deep": b"]" * DEEP + b"a" * (DEEP - 1),
        "tuples, deep": b")" + b"\x85" * DEEP,
        "tuples, deep, as a key": b"})" + b"\x85" * DEEP + b"Ns",
        "a memo far away": b"]r\xff\xff\xff\x7f",
        "a text of many exabytes": b"\x8d" + huge,
        "bytes of many exabytes": b"\x8e" + huge,
        "a bytearray of many exabytes": b"\x96" + huge,
        "a number of many digits": b"\x8b\x00\x00\x00\x01" + b"\xff" * (1 << 24),
        "a number of negative length": b"\x8b\xff\xff\xff\xff",
        "a list that holds itself": b"]\x94h\x00a",
        "lists of lists, doubled": _doubled(40),
    }


def _doubled(times: int) -> bytes:
    """Each list holds the one before it twice: 2 ** times texts, for whoever walks through them."""
    body = b"](" + _text("x") + _text("y") + b"e\x94"
    for k in range(times):
        body += b"](" + b"h" + bytes([k]) + b"h" + bytes([k]) + b"e\x94"
    return body


def _text(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.dumps")
    parser.add_argument("--mutants", type=int, default=2000)
    parser.add_argument("--only", type=int, metavar="SEED")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        seeds = range(options.mutants) if options.only is None else [options.only]
        defects = [
            *_counted("mutants", _mutants(seeds, Path(place))),
            *_counted("hostile pickles", _hostile(Path(place))),
        ]
    print("\n".join(defects))
    sys.exit(bool(defects))


def _mutants(seeds: Iterable[int], place: Path) -> Iterator[tuple[str, str]]:
    found = bases(place / "bases")
    for seed in seeds:
        name, folder = sorted(found)[seed % len(found)], place / f"mutant-{seed}"
        how = mutant(seed, found[name], folder)
        yield f"mutant {seed} of {name} ({how[:200]!r})", outcome(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _hostile(place: Path) -> Iterator[tuple[str, str]]:
    flag, folder = place / "flag", place / "hostile"
    for name, data in hostile_pickles(flag):
        folder.mkdir()
        (folder / "_dump_0").write_bytes(data)
        said = outcome(folder)
        yield name, "it ran" if flag.exists() else said
        shutil.rmtree(folder)


def _counted(what: str, tried: Iterable[tuple[str, str]]) -> list[str]:
    """Print how many ended how. Returns the defects."""
    began, counts, defects = time.monotonic(), Counter[str](), list[str]()
    for name, said in tried:
        is_well = said in (ANSWERED, REFUSED)
        counts[said if is_well else "defect"] += 1
        defects += [] if is_well else [f"{name}: {said}"]
    print(f"{sum(counts.values())} {what} in {time.monotonic() - began:.0f} s: {dict(counts)}", flush=True)
    return defects


if __name__ == "__main__":
    main()
