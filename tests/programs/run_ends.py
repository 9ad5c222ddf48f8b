"""Ends in the way that its argument names, without importing torch."""

from __future__ import annotations

import atexit
import os
import signal
import sys


def end(how: str) -> None:
    atexit.register(print, "at exit")
    if how == "exit":
        sys.exit(7)
    if how == "sentence":
        sys.exit("a sentence")
    if how == "raise":
        raise LookupError("planted")
    if how == "chained":
        try:
            raise LookupError("first")
        except LookupError as error:
            raise ValueError("second") from error
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "own-hook":
        sys.excepthook = lambda kind, error, traceback: print(kind, error, traceback.tb_frame.f_code.co_name)
        raise LookupError("planted")
    if how == "os-exit":
        os._exit(9)
    if how == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    end(sys.argv[1])
