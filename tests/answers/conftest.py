"""Runs in which one cause of lost time was planted, and what a person is told of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

import ddptrace
from ddptrace.analysis.result import Result
from ddptrace.cli import main
from ddptrace.render.terminal import summary_text
from tests.launch import torchrun


@dataclass(frozen=True, slots=True)
class Answer:
    """`text`: what `ddptrace analyze` prints, in one line."""

    run: Path
    result: Result
    text: str

    def said(self, code: str) -> str:
        """The finding of this kind, where it is printed; empty where there is none."""
        messages = [finding.message for finding in self.result.findings if finding.code == code]
        assert all(_letters(message) in _letters(self.text) for message in messages), f"{code} is not printed"
        return " ".join(messages)


def _letters(text: str) -> str:
    """Lines end at hyphens too."""
    return "".join(text.split())


Ask = Callable[..., Answer]


@pytest.fixture(scope="session")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Train with a cause of `programs/asked.py` and its options, once for each."""

    @functools.cache
    def asked(*arguments: str, ranks: int = 2) -> Answer:
        run = tmp_path_factory.mktemp("asked") / "run"
        torchrun("asked.py", run, *arguments, ranks=ranks)
        return answered(run)

    return asked


def printed(command: str, answer: Answer) -> str:
    """What another command says of the run, in one line."""
    done = CliRunner().invoke(main, [*command.split(), str(answer.run)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def answered(run: Path) -> Answer:
    result = ddptrace.analyze(run)
    return Answer(run, result, " ".join(summary_text(result).split()))
