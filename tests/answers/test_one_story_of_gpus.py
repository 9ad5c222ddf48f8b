"""`analyze`, `whatif` and `advise` tell one story of a GPU's trace: its typical step, its headline, its savings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from ddptrace.analysis.summary import WORTH_RATIO, summarize
from ddptrace.cli import main
from ddptrace.render.headline import headline
from ddptrace.units import duration
from tests.answers.conftest import answered, printed
from tests.answers.test_one_story import told

TRACES = (
    "ddp-a100", "dlrm-8ranks", "old-format/control.json.gz", "judged/8ranks-zero-h100", "judged/data-bound-owlv2",
    "judged/dlrm-blocked-copies", "judged/moe-dualpipe-deepep",
)  # fmt: skip


@pytest.mark.parametrize("trace", TRACES)
def test_a_gpu_trace_has_one_story(trace: str, shared_traces: Path) -> None:
    answer = answered(shared_traces / trace)
    result, summary, path = answer.result, summarize(answer.result), str(answer.run)
    assert summary.typical is not None
    forecast, advice = told(answer, "whatif", path), told(answer, "advise", path)
    assert f"Typical step {duration(summary.typical.window_ns)}" in answer.text
    assert forecast["recorded_ns"] == advice["recorded_ns"] == summary.typical.window_ns
    exposed = summary.part("exposed_comm")
    assert exposed is not None and forecast["recorded_exposed_ns"] == exposed.ns
    assert abs(forecast["replay_error_ratio"]) < 0.02
    assert " ".join(headline(result, summary).text.split()) in printed("advise", answer)
    worth = [asdict(row) for row in result.savings if row.cost_ratio >= WORTH_RATIO]
    assert [limit["saving"] for limit in advice["limits"]] == worth
    predicted = {row["name"]: row for row in forecast["predictions"]}
    for limit in advice["limits"]:
        if limit["remedy"] is not None:
            assert limit["remedy"] == predicted[limit["remedy"]["name"]]
            assert limit["remedy"]["gain_ratio"] <= limit["saving"]["cost_ratio"] + WORTH_RATIO


@pytest.mark.parametrize(
    ("trace", "name", "wins"),
    [
        ("judged/data-bound-owlv2", "free data loading", (0.48, 0.54)),  # analyze: 51 % idle while a batch is fetched
        ("ddp-a100", "host twice as fast", (0.40, 0.55)),  # analyze: 74 % idle while the host is at work
        ("ddp-a100", "free network", (-0.01, 0.02)),  # the host launches too late for it to help
    ],
)
def test_what_limits_a_step_is_what_wins_when_it_is_gone(
    trace: str, name: str, wins: tuple[float, float], shared_traces: Path
) -> None:
    answer = answered(shared_traces / trace)
    (found,) = [row for row in told(answer, "whatif", str(answer.run))["predictions"] if row["name"] == name]
    assert wins[0] < found["gain_ratio"] < wins[1]
    assert found["gain_low_ratio"] < found["gain_ratio"] < found["gain_high_ratio"]
    assert any("have not been compared with runs" in line for line in found["basis"])


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        (("--caps", "1"), "nothing shows what collectives of other sizes take"),
        (("--even", "9"), "there is no rank 9 in the run"),
        (("--even", "0"), "there is no other rank"),
        (("--free-data",), "no fetching of a batch shows"),
    ],
)
def test_what_a_gpu_trace_does_not_tell_is_refused_with_the_reason(
    options: tuple[str, ...], refusal: str, shared_traces: Path
) -> None:
    said = CliRunner().invoke(main, ["whatif", str(shared_traces / "ddp-a100"), *options])
    assert said.exit_code == 0, said.output
    assert refusal in " ".join(said.output.split())


def test_many_ranks_and_other_caps_are_refused_of_a_gpu_trace(shared_traces: Path) -> None:
    path = str(shared_traces / "ddp-a100")
    for command in (["whatif", path, "--scale"], ["advise", path, "--verify", "train {caps}"]):
        said = CliRunner().invoke(main, command)
        assert said.exit_code == 1
        assert said.output.startswith("Error: --")


@pytest.mark.parametrize("command", ["whatif", "advise"])
def test_an_odd_file_is_answered_or_refused_in_one_sentence(command: str, shared_traces: Path) -> None:
    for file in sorted((shared_traces / "odd").glob("*.json.gz")):
        said = CliRunner().invoke(main, [command, str(file)])
        refused = said.exit_code == 1 and said.output.startswith("Error: ") and said.output.count("\n") == 1
        assert refused or said.exit_code == 0, (file, said.output, said.exception)
