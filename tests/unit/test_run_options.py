"""What `python -m ddptrace.run` is told, and by whom: flags before environment before pyproject.toml."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddptrace.cli.run import run
from ddptrace.errors import DdptraceError
from ddptrace.record.store import Store
from ddptrace.run.options import EPILOG, Command, Schedule, command_line, read_command
from ddptrace.trace_options import Keep, Labels, when_slow


def command(*argv: str, cwd: Path = Path("/nowhere"), **environ: str) -> Command:
    return read_command(argv, environ, cwd)


def refused(*argv: str, cwd: Path = Path("/nowhere"), **environ: str) -> str:
    with pytest.raises(DdptraceError) as said:
        read_command(argv, environ, cwd)
    assert "\n" not in str(said.value)
    return str(said.value)


def project(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_without_any_option_it_records_into_run_beside_where_it_was_started() -> None:
    told = command("train.py")
    assert (told.program, told.is_module, told.args) == ("train.py", False, ())
    assert told.options.out == Path("/nowhere/run")
    assert told.options.overwrite is False
    assert told.options.profile is None
    assert told.options.keep is None


def test_everything_behind_the_program_is_the_programs() -> None:
    told = command("--out", "a", "train.py", "--out", "b", "-m", "--", "--profile=x")
    assert told.args == ("--out", "b", "-m", "--", "--profile=x")
    assert told.options.out == Path("/nowhere/a")
    told = command("-m", "pkg.train", "-m", "--overwrite")
    assert (told.program, told.is_module, told.args) == ("pkg.train", True, ("-m", "--overwrite"))
    assert told.options.overwrite is False


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("when-slow", when_slow()),
        ("when-slow:factor=1.5,at-most=2,active=4", when_slow(factor=1.5, at_most=2, active=4)),
        ("when-slow: at-most=1", when_slow(at_most=1)),
    ],
)
def test_windows_may_wait_for_slower_steps(said: str, wanted: when_slow) -> None:
    assert command("--profile", said, "t.py").options.profile == wanted


def test_a_flag_comes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    cwd = project(tmp_path, '[tool.ddptrace]\nout = "file"\noverwrite = true\nprofile = "1,1,1"\nkeep = "size=1GB"\n')
    environ = {"DDPTRACE_OUT": "environment", "DDPTRACE_OVERWRITE": "0", "DDPTRACE_PROFILE": "2,2,2,2"}
    environ["DDPTRACE_KEEP"] = "steps=500"
    by_file = command("t.py", cwd=cwd).options
    by_environment = command("t.py", cwd=cwd, **environ).options
    flags = ("--out", "/flag", "--overwrite", "--profile", "3,0,3,0", "--keep", "size=64MiB,every=10")
    by_flag = command(*flags, "t.py", cwd=cwd, **environ).options
    assert [one.keep for one in (by_file, by_environment, by_flag)] == [
        Keep(nbytes=10**9), Keep(steps=500), Keep(nbytes=64 << 20, every=10),
    ]  # fmt: skip
    assert [one.out for one in (by_file, by_environment, by_flag)] == [
        tmp_path / "file", tmp_path / "environment", Path("/flag"),
    ]  # fmt: skip
    assert [one.overwrite for one in (by_file, by_environment, by_flag)] == [True, False, True]
    assert [one.profile for one in (by_file, by_environment, by_flag)] == [
        Schedule(1, 1, 1, 1), Schedule(2, 2, 2, 2), Schedule(3, 0, 3, 0),
    ]  # fmt: skip


def test_an_empty_environment_variable_says_nothing() -> None:
    assert command("t.py", DDPTRACE_OUT="", DDPTRACE_PROFILE="").options == command("t.py").options


def test_the_nearest_file_with_the_table_counts_and_its_paths_are_relative_to_it(tmp_path: Path) -> None:
    project(tmp_path, '[tool.ddptrace]\nout = "far"\n')
    near = project(tmp_path / "a", '[tool.ddptrace]\nout = "near"\n')
    project(tmp_path / "a" / "b", "[tool.other]\nx = 1\n")
    assert command("t.py", cwd=tmp_path / "a" / "b").options.out == near / "near"
    assert command("t.py", cwd=tmp_path).options.out == tmp_path / "far"


only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
STRANGER = 4321


@pytest.mark.parametrize(
    "plant", [pytest.param("file", marks=only_root), pytest.param("link", marks=only_root), "world-writable"]
)
def test_a_file_that_any_user_could_have_put_there_is_left_out_with_a_word(
    plant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in /tmp, above a folder of this user."""
    anybodys = project(tmp_path / "anybodys", '[tool.ddptrace]\nout = "theirs"\noverwrite = true\n')
    file, cwd = anybodys / "pyproject.toml", anybodys / "ours"
    cwd.mkdir()
    assert command("t.py", cwd=cwd).options.out == anybodys / "theirs"
    if plant == "world-writable":
        file.chmod(0o666)
    else:
        anybodys.chmod(0o1777)
        assert command("t.py", cwd=cwd).options.overwrite, "of this user, and nobody else can replace it"
    if plant == "link":
        file.rename(tmp_path / "elsewhere.toml")
        file.symlink_to(tmp_path / "elsewhere.toml")
    if plant != "world-writable":
        os.chown(file, STRANGER, STRANGER, follow_symlinks=False)
    assert capsys.readouterr().err == ""
    told = command("t.py", cwd=cwd).options
    assert (told.out, told.overwrite) == (cwd / "run", False)
    said = capsys.readouterr().err
    assert said.startswith(f"ddptrace.run: ignoring {file}, because every user") and said.count("\n") == 1
    # AND what is above it counts
    project(tmp_path, '[tool.ddptrace]\nout = "above"\n')
    assert command("t.py", cwd=cwd).options.out == tmp_path / "above"


@pytest.mark.parametrize("text", ["[tool.ddptrace\n", "[tool.other]\n", f"x = {'[' * 9999}", None])
def test_what_any_user_could_have_put_there_cannot_end_or_stop_the_program(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None: a pipe that nobody writes into."""
    file = tmp_path / "pyproject.toml"
    os.mkfifo(file) if text is None else file.write_text(text)
    file.chmod(0o666)
    assert command("t.py", cwd=tmp_path).options.out == tmp_path / "run"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[tool.ddptrace]\nouts = "x"\n', "has unknown options: outs; known are out, overwrite, profile, keep"),
        ("[tool.ddptrace\n", "is not valid TOML"),
        ("[tool.ddptrace]\nout = 3\n", "is 3; give a directory"),
        ("[tool.ddptrace]\noverwrite = 3\n", "is 3; give true or false"),
        ("[tool.ddptrace]\nprofile = 3\n", "is 3; give WAIT,WARMUP,ACTIVE"),
        ("[tool]\nddptrace = 3\n", "is 3; make it a table"),
    ],
)
def test_a_mistake_in_the_file_is_told_in_one_sentence_that_names_the_file(
    tmp_path: Path, text: str, said: str
) -> None:
    sentence = refused("t.py", cwd=project(tmp_path, text))
    assert said in sentence
    assert str(tmp_path / "pyproject.toml") in sentence


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "required: program"),
        (("--outs", "x", "t.py"), "usage: python -m ddptrace.run"),
        (("--profile", "5,1", "t.py"), "--profile is '5,1'; give WAIT,WARMUP,ACTIVE"),
        (("--profile", "5,1,0", "t.py"), "--profile is '5,1,0'"),
        (("--profile", "when-slow:", "t.py"), "--profile is 'when-slow:'; give \"when-slow\", or with a factor of at"),
        (("--profile", "when-slow:factor=1", "t.py"), "factor of at least 1.05 and whole numbers above 0"),
        (("--profile", "when-slow:often=2", "t.py"), "--profile is 'when-slow:often=2'"),
        (("--profile", "when-slow:at-most=x", "t.py"), "--profile is 'when-slow:at-most=x'"),
        (("--profile", "-5,1,1", "t.py"), "--profile"),
        (("--out", "", "t.py"), "--out is ''; give a directory"),
        (("--keep", "64", "t.py"), "--keep is '64'; give size=, steps= or every="),
        (("--keep", "size=lots", "t.py"), "--keep is 'size=lots'; give size="),
        (("--keep", "steps=5,steps=6", "t.py"), "--keep is 'steps=5,steps=6'; give size="),
        (("--keep", "size=1furlong", "t.py"), "a size in kB, MB, GB, KiB, MiB or GiB"),
        (("--keep", "size=100kb", "t.py"), "--keep is 'size=100kb'; give a size of at least 4MB"),
        (("--keep", "size=1MB", "t.py"), "--keep is 'size=1MB'; give a size of at least 4MB"),
        (("--keep", "every=0", "t.py"), "--keep is 'every=0'; give whole numbers above 0"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_in_one_sentence(argv: tuple[str, ...], said: str) -> None:
    assert said in refused(*argv)


@pytest.mark.parametrize(
    ("said", "nbytes"),
    [
        ("5000kB", 5_000_000), ("5000kb", 5_000_000), ("4000KiB", 4_096_000), ("5MB", 5_000_000), ("5mb", 5_000_000),
        ("5MiB", 5_242_880), ("1GB", 1_000_000_000), ("1gib", 1_073_741_824), ("4000000", 4_000_000),
    ],
)  # fmt: skip
def test_a_size_may_be_said_in_any_usual_unit_and_case(said: str, nbytes: int) -> None:
    kept = command("--keep", f"size={said}", "t.py").options.keep
    assert kept is not None and kept.nbytes == nbytes


def test_help_says_that_records_go_by_whole_files_which_are_as_large_as_it_says() -> None:
    assert "whole files of 4MiB, or of a sixteenth of size= if that is less" in EPILOG
    sizes = [Store(Path, Keep(nbytes), print, print).segment_nbytes for nbytes in (64 << 20, 1 << 30, 32 << 20)]
    assert sizes == [4 << 20, 4 << 20, 2 << 20]


def test_a_mistake_in_the_environment_names_the_variable() -> None:
    assert refused("t.py", DDPTRACE_OVERWRITE="maybe") == "DDPTRACE_OVERWRITE is 'maybe'; give true or false"
    assert refused("t.py", DDPTRACE_PROFILE="five").startswith("DDPTRACE_PROFILE is 'five'; give WAIT")


def test_a_run_is_named_by_flag_environment_or_file(tmp_path: Path) -> None:
    flags = command("--name", "gpt", "--tags", "a, b c,", "--notes", "why", "train.py").options.labels
    assert flags == Labels("gpt", ("a", "b c"), "why")
    assert command("train.py", DDPTRACE_NAME="gpt").options.labels == Labels("gpt")
    folder = project(tmp_path, '[tool.ddptrace]\ntags = "a,b"\n')
    assert command("train.py", cwd=folder).options.labels == Labels(tags=("a", "b"))
    assert "give a text" in refused("train.py", cwd=project(tmp_path, "[tool.ddptrace]\nname = 1\n"))


def test_the_command_run_takes_every_option_of_the_launcher() -> None:
    launcher = {flag for action in command_line()._actions for flag in action.option_strings} - {"-h", "--help"}
    assert {flag for parameter in run.params for flag in parameter.opts if flag.startswith("-")} == launcher
