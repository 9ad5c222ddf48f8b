"""Prints all that a program can see of how it was started, without importing torch."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import pickle
import re
import sys


class Pickled:
    """Found again by its module's name, which has to be `__main__`."""


def child(seen: dict[str, object]) -> None:
    seen["child"] = [__name__, [name for name in sys.modules if name.startswith("ddptrace")]]


def described(names: dict[str, object]) -> dict[str, str]:
    """Without addresses; `show` and others are the program's own."""
    return {name: re.sub(r" at 0x\w+", "", repr(value)) for name, value in names.items() if name.startswith("__")}


def main() -> None:
    with multiprocessing.get_context("spawn").Manager() as manager:
        seen = manager.dict()
        process = multiprocessing.get_context("spawn").Process(target=child, args=(seen,))
        process.start()
        process.join()
        of_child = list(seen["child"])
    told = {
        "globals": BEFORE,
        "argv": sys.argv,
        "path": sys.path,
        "cwd": os.getcwd(),  # noqa: PTH109 (a string for the JSON)
        "is main": vars(sys.modules["__main__"]) is globals(),
        "heavy": sorted({"torch", "numpy"} & set(sys.modules)),
        "pickled": pickle.loads(pickle.dumps(Pickled())).__class__ is Pickled,
        "source": inspect.getsource(Pickled),
        "child": of_child,
    }
    print(json.dumps(told, indent=1))


BEFORE = described(dict(globals()))

if __name__ == "__main__":
    main()
