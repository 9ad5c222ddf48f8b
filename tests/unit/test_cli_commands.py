"""How `ddptrace` lists its commands, and what it answers to a name that none of them has."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import ddptrace
from ddptrace.cli import SECTIONS, main
from ddptrace.cli.whatif import whatif
from ddptrace.run.options import read_command


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


def test_a_setting_has_the_names_of_the_options_of_whatif() -> None:
    asked = {parameter.name for parameter in whatif.params} - {"run", "scale", "per_host", "as_json"}
    assert asked == {field.name for field in dataclasses.fields(ddptrace.Setting)}


def test_a_notebook_completes_the_public_names_before_they_are_imported() -> None:
    assert set(dir(ddptrace)) == set(ddptrace.__all__)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("words", [("--help",), ("bench", "--help")])
def test_the_purpose_of_every_command_fits_on_its_line(width: int, words: tuple[str, ...]) -> None:
    text = CliRunner().invoke(main, words, terminal_width=width).stdout
    told = [line for line in text.splitlines() if re.match(r"  [a-z]", line)]
    assert len(told) >= 9
    assert [line for line in told if len(line) > width or not line.endswith(".") or "..." in line] == []


def test_a_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, expected in {
        "ddptrace an": "analyze",
        "ddptrace run --pro": "--profile",
        "ddptrace bench uni": "",
    }.items():
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        monkeypatch.setenv("_DDPTRACE_COMPLETE", "bash_complete")
        told = CliRunner().invoke(main, prog_name="ddptrace", complete_var="_DDPTRACE_COMPLETE").stdout.split()
        assert told == ([f"plain,{expected}"] if expected else [])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train.py", "--lr", "3", "-m", "--out", "x"], ["train.py", "--lr", "3", "-m", "--out", "x"]),
        (
            ["--out", "run/", "--overwrite", "--profile", "5,1,3", "--keep", "steps=9", "-m", "package.train"],
            ["--out", "run/", "--profile", "5,1,3", "--keep", "steps=9", "--overwrite", "-m", "package.train"],
        ),
    ],
)
def test_run_hands_its_process_to_the_module_of_that_name(
    monkeypatch: pytest.MonkeyPatch, words: list[str], told: list[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, argv: started.append([program, *argv]))
    assert CliRunner().invoke(main, ["run", *words]).exit_code == 0
    assert started == [[sys.executable, sys.executable, "-m", "ddptrace.run", *told]]
    read_command(told, {}, Path.cwd())


@pytest.mark.parametrize("words", ["bench buckets", "bench scale", "compile"])
def test_a_missing_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    for package in ("bench", "capture"):
        if hasattr(ddptrace, package):
            monkeypatch.setattr(ddptrace, package, getattr(ddptrace, package))  # importing it anew would replace it
    for name in [name for name in sys.modules if name.startswith(("ddptrace.bench", "ddptrace.capture"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 1
    command = "ddptrace " + words.split()[0]
    assert done.stderr == f"Error: {command} needs torch, which is not installed: pip install 'ddptrace[torch]'\n"


@pytest.mark.parametrize(("typed", "meant"), [("analyse", "analyze"), ("what-if", "whatif"), ("diagnos", "diagnose")])
def test_a_typo_is_answered_with_the_command_that_was_meant(typed: str, meant: str) -> None:
    assert error(typed, "run") == f"Error: No such command '{typed}'. Did you mean `ddptrace {meant}`?"


def test_a_run_in_place_of_a_command_is_answered_with_the_command_that_reads_it(tmp_path: Path) -> None:
    assert error(str(tmp_path)).endswith(f"Did you mean `ddptrace analyze {tmp_path}`?")


def test_a_name_that_is_like_none_gets_no_guess() -> None:
    assert error("zzz") == "Error: No such command 'zzz'."
