"""Runs `ddptrace` in this process, which has imported everything; tests of how it starts and ends start it anew."""

from __future__ import annotations

import subprocess
import traceback

from click.testing import CliRunner

from ddptrace.cli import main


def ddptrace_says(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What `ddptrace ARGUMENTS...` prints, and its exit code; a traceback on stderr where an error escapes."""
    words = [str(one) for one in arguments]
    done = CliRunner().invoke(main, words)
    escaped = done.exception if not isinstance(done.exception, SystemExit) else None
    told = "".join(traceback.format_exception(escaped)) if escaped else ""
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr + told)
