"""A trace that an exception ends closes as any other, and says what it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import ddptrace
from ddptrace.findings import Finding
from tests.launch import environment, server
from tests.self_launched import NO_LAUNCHER


class Unlucky(Exception):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("planted: it has no words")


def train() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def traced(path: Path, error: BaseException) -> list[Finding]:
    """What is said of a run that `error` ended."""
    with pytest.raises(type(error)) as raised, ddptrace.trace(path):
        train()
        raise error
    assert raised.value is error
    result = ddptrace.analyze(path)
    assert result.ranks[0].clean and len(result.steps) == 2
    return [finding for finding in result.findings if finding.code == "ended-by-exception"]


def test_the_exception_that_ends_a_trace_is_named_with_the_first_line_of_its_message(tmp_path: Path) -> None:
    (finding,) = traced(tmp_path / "run", Unlucky("no\x1bluck today\nand a second line"))
    assert (finding.severity, finding.where) == ("warning", "rank 0")
    assert finding.message.startswith("An exception ended the trace")
    assert finding.message.endswith(": Unlucky: no\\x1bluck today")


def test_an_exception_without_a_message_is_named_once(tmp_path: Path) -> None:
    (finding,) = traced(tmp_path / "run", KeyboardInterrupt())
    assert finding.message.endswith(": KeyboardInterrupt") and finding.message.count("KeyboardInterrupt") == 1


def test_an_exception_that_cannot_be_put_into_words_reaches_the_program_all_the_same(tmp_path: Path) -> None:
    (finding,) = traced(tmp_path / "run", Mute())
    assert finding.message.endswith(": Mute")


def test_a_program_that_ends_itself_with_success_is_no_failure(tmp_path: Path) -> None:
    assert traced(tmp_path / "run", SystemExit(0)) == []
    assert len(traced(tmp_path / "failed", SystemExit(3))) == 1


def test_an_exit_whose_code_cannot_be_compared_ends_the_trace_as_any_other(tmp_path: Path) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise LookupError("planted")

        __hash__ = None  # type: ignore[assignment]

    original = torch.nn.Module.__call__
    assert traced(tmp_path / "run", SystemExit(Odd())) == []
    assert torch.nn.Module.__call__ is original


@pytest.mark.parametrize(
    ("last_line", "code", "said"),
    [
        (
            "raise ValueError('no luck')",
            1,
            [("ended-by-exception", "An exception ended the trace: ValueError: no luck")],
        ),
        ("sys.exit(3)", 3, [("ended-by-exception", "An exception ended the trace: SystemExit: 3")]),
        ("sys.exit('no data')", 1, [("ended-by-exception", "An exception ended the trace: SystemExit: no data")]),
        ("os._exit(4)", 4, [("ended-by-exit", "os._exit(4) ended the process: nothing after that was recorded")]),
        ("sys.exit()", 0, []),
        ("os._exit(0)", 0, []),
        ("os.fork() or os._exit(5)", 0, []),
    ],
)
def test_what_ends_a_program_under_the_launcher_is_told_unless_it_is_success(
    tmp_path: Path, last_line: str, code: int, said: list[tuple[str, str]]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, torch\ntorch.nn.Linear(2, 2)(torch.ones(2))\n{last_line}\n")
    argv = ["-m", "ddptrace.run", "--out", str(tmp_path / "run"), str(script)]
    with server().started(argv, 1, environment(), to_the_end=True, torchrun=NO_LAUNCHER) as job:
        statuses = job.statuses(timeout_s=60)
    assert statuses is not None and [os.waitstatus_to_exitcode(status or 0) for status in statuses] == [code], job.said
    findings = [(one.code, one.message) for one in ddptrace.analyze(tmp_path / "run").findings]
    assert [(name, text) for name, text in findings if name.startswith("ended-by")] == said
