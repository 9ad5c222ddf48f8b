"""Texts that a user reads are plain: none uses a phrase that has to be read twice."""

from __future__ import annotations

from pathlib import Path

from tools.texts import DIALECT, comments_of, texts, texts_of

PROGRAM = '''
import warnings
import click

@click.command()
@click.option("--fast", metavar="TIMES", help="As fast.")
def slow() -> None:
    """Say what was seen."""
    raise ValueError(f"{slow} is told by lot, at two o'clock")

class Open:
    """Holds so many."""

    def read(self) -> None:
        """None where it is none."""
        warnings.warn("it has a file of its own", stacklevel=2)
        click.echo("three ranks are ready")

TITLE = "What is shown"
_KEY = "a_key"
'''


def test_no_text_has_a_phrase_that_has_to_be_read_twice() -> None:
    found = [f"{text.path}:{text.line}: {text.words}" for text in texts() if DIALECT.search(text.words)]
    assert found == []


def test_the_package_has_texts_of_every_kind() -> None:
    kinds = {text.kind for text in texts()}
    assert kinds == {"command", "help", "error", "warning", "echo", "query", "docstring", "text"}


def test_texts_are_found_wherever_they_stand(tmp_path: Path) -> None:
    # GIVEN a module with a text in every place
    file = tmp_path / "module.py"
    file.write_text(PROGRAM)
    query = tmp_path / "query.sql"
    query.write_text("-- First line,\n-- and second.\nselect 1 -- not this\n")
    # WHEN its texts are listed, with one public name
    found = [(text.kind, text.line, text.words) for text in (*texts_of(file, {"Open"}), *comments_of(query))]
    # THEN all are there with their kind and line, and keys are not
    assert sorted(found) == sorted(
        [
            ("command", 8, "Say what was seen."),
            ("docstring", 12, "Holds so many."),
            ("docstring", 15, "None where it is none."),
            ("help", 6, "TIMES"),
            ("help", 6, "As fast."),
            ("error", 9, "{…} is told by lot, at two o'clock"),
            ("warning", 16, "it has a file of its own"),
            ("echo", 17, "three ranks are ready"),
            ("text", 19, "What is shown"),
            ("query", 1, "First line, and second."),
        ]
    )
    # AND those with a phrase of the dialect are recognized
    plain = {words for _, _, words in found if not DIALECT.search(words)}
    assert plain == {"TIMES", "three ranks are ready", "What is shown", "First line, and second."}
