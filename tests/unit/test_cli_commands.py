"""How `ddptrace` lists its commands, and what it answers to a name that none of them has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddptrace.cli import SECTIONS, main


def error(*words: str) -> str:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    return done.stderr.splitlines()[-1]


def test_every_command_stands_once_in_the_section_of_its_purpose() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    listed = {}
    for section, below in re.findall(r"^(\w[^\n]*):\n((?:  \S.*\n?)+)", text, re.MULTILINE):
        listed[section] = tuple(re.findall(r"^  (\w+) +\S.*\.$", below, re.MULTILINE))
    assert {section: listed[section] for section in SECTIONS} == SECTIONS
    files = {path.stem for path in Path(main.callback.__code__.co_filename).parent.glob("*.py")}
    assert {name for names in SECTIONS.values() for name in names} <= files


@pytest.mark.parametrize(("typed", "meant"), [("analyse", "analyze"), ("what-if", "whatif"), ("diagnos", "diagnose")])
def test_a_typo_is_answered_with_the_command_that_was_meant(typed: str, meant: str) -> None:
    assert error(typed, "run") == f"Error: No such command '{typed}'. Did you mean `ddptrace {meant}`?"


def test_a_run_in_place_of_a_command_is_answered_with_the_command_that_reads_it(tmp_path: Path) -> None:
    assert error(str(tmp_path)).endswith(f"Did you mean `ddptrace analyze {tmp_path}`?")


def test_a_name_that_is_like_none_gets_no_guess() -> None:
    assert error("zzz") == "Error: No such command 'zzz'."
