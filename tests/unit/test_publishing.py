"""What a package index shows and what the workflows run: absolute links, one address of the project, known commands."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from ddptrace.version import __version__
from tests.launch import ROOT
from tools.versions import PAIRS, TESTS, Row, table

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ADDRESS = PROJECT["project"]["urls"]["Source"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def published_readme() -> str:
    """As the build writes it into the package's metadata."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for one in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(one["pattern"], one["replacement"], text)
    return text


def test_every_link_and_picture_of_the_published_readme_is_absolute() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", published_readme())
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert [link for link in links if link.endswith(".png")] == [
        link for link in links if link.startswith("https://raw.githubusercontent.com/")
    ]


@pytest.mark.parametrize("name", ["README.md", "SECURITY.md", "CITATION.cff", "dashboards/prometheus/rules.yml"])
def test_the_project_has_one_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert all(
        f"https://{found}".startswith(ADDRESS) for found in re.findall(r"github\.com/[\w./-]*ddptrace[\w./-]*", text)
    )


def test_the_citation_names_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__


def test_no_extra_but_its_own_holds_pandas_back() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert "pandas<3" in extras["hta"]
    assert not [name for name, needs in extras.items() if name != "hta" and "hta" in " ".join(needs)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_the_makefile_has(path: Any) -> None:
    steps = [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert all(target in targets for step in steps for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", "")))
    assert {step["uses"].partition("@")[0] for step in steps if "uses" in step} >= {"actions/checkout"}


def test_there_is_a_workflow_for_each_part() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "lint", "test", "wheels"]


def test_the_table_of_versions_has_every_python_and_says_what_was_not_run() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    assert {python for python, _ in PAIRS} == {
        one.rpartition(" ")[2] for one in classifiers if re.search(r"Python :: 3\.\d", one)
    }
    assert all((ROOT / path).is_file() for path in TESTS)
    assert "| 3.14 | 2.15 | not run | python3.14 is not installed |" in table(
        [Row("3.14", "2.15", None, "python3.14 is not installed")]
    )
