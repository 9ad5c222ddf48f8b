"""What a reader gets of predictions and advice."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from ddptrace.analysis.whatif.advise import Advice, advise, verification_of
from ddptrace.analysis.whatif.answer import RANKS, Forecast, answer, forecast_of, usual
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Setting, WhatIf
from ddptrace.render.report import page
from ddptrace.render.whatif.answers import (
    advice_headline,
    advice_section,
    advice_text,
    in_short,
    verification_text,
    whatif_text,
)
from ddptrace.render.whatif.words import SIMULATED, setting_words
from ddptrace.render.words import WIDTH
from tests.made import make_result
from tests.unit.made_whatif import MS, Made, in_buckets, made_ranks

EVIL = "<b onclick=x></script>\x1b[31m\u202e"


@pytest.fixture(scope="module")
def found() -> Predictor:
    made = Made(byte_ns=20.0)
    return Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 8))]))


@pytest.fixture(scope="module")
def advice(found: Predictor) -> Advice:
    return advise(found)


@pytest.fixture(scope="module")
def answers(found: Predictor) -> WhatIf:
    return answer(found, usual(found))


def test_every_line_fits_the_terminal(answers: WhatIf, advice: Advice) -> None:
    for text in (whatif_text(answers), advice_text(advice, make_result())):
        assert max(map(len, text.splitlines())) <= WIDTH
        assert text.endswith("\n")


def test_the_replay_stands_before_all_answers(answers: WhatIf) -> None:
    text = whatif_text(answers)
    assert text.index("Played again as it was") < text.index("as recorded") < text.index("bucket_cap_mb=0.5")


def test_each_answer_has_its_interval_and_change(answers: WhatIf) -> None:
    free = next(one for one in answers.predictions if one.setting.free_network)
    (line,) = (line for line in whatif_text(answers).splitlines() if "free network" in line)
    assert f"{(free.step_ns or 0) / 1e6:.1f}" in line
    assert f"{(free.low_ns or 0) / 1e6:.1f} .. {(free.high_ns or 0) / 1e6:.1f}" in line
    assert f"−{100 * (free.gain_ratio or 0):.0f} %" in line


def test_every_change_is_that_of_the_steps_that_are_printed(answers: WhatIf) -> None:
    """Negative where the step gets shorter. Of accumulation, steps have several backwards."""
    told = re.findall(r"^  (.{34}) +([\d,.]+) .* \.\. +[\d,.]+ +([+−]?)(\d+) %", whatif_text(answers), re.MULTILINE)
    steps = {name.strip(): float(step.replace(",", "")) for name, step, *_ in told}
    changes = {name.strip(): int(sign.replace("−", "-") + change) for name, _, sign, change in told}
    del changes["an update every 4 backwards"]
    assert len(changes) > 10 and min(changes.values()) < -5 and max(changes.values()) > 5
    for name, change in changes.items():
        assert change == pytest.approx(100 * (steps[name] / steps["as recorded"] - 1), abs=0.55), name


def test_what_limits_the_step_and_what_helps_change_it_alike() -> None:
    """A late rank comes first and stands among what limits the step, with the same change, and nowhere else."""
    late = advised(Made(late=(0, 60 * MS, 0), crowded=(0, 30 * MS, 250 * MS)), 8)
    limit = next(one for one in late.limits if one.name == "straggler")
    told = advice_text(late, make_result())
    (listed,) = re.findall(r"^ +−[\d.]+ ms +(−\d+ %)  rank 1: if", told, re.MULTILINE)
    (helping,) = re.findall(r"Make rank 1 as fast as the others: (−\d+ %)", told)
    assert "a faster rank 1" not in told
    assert listed == helping == f"−{100 * limit.gain_ratio:.0f} %"


def advised(made: Made, size: int) -> Advice:
    return advise(Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, size))])))


def test_a_rank_that_is_worth_more_than_any_plan_comes_first() -> None:
    late = advised(Made(late=(0, 60 * MS, 0)), 8)
    assert late.first_rank is not None and late.first_rank.setting.even == 1
    told = advice_headline(late)
    assert told.startswith("Make rank 1 as fast as the others: −24 % (") and "Take bucket_cap_mb" in told


def test_a_rank_that_is_worth_less_than_a_plan_does_not(advice: Advice) -> None:
    little = advised(Made(byte_ns=20.0, late=(0, 20 * MS)), 8)
    assert any(limit.name == "straggler" for limit in little.limits) and little.first_rank is None
    assert advice_headline(little).startswith("Take ") and advice_headline(advice).startswith("Take ")


def test_a_cap_that_may_win_nothing_is_the_best_guess() -> None:
    vague = advised(Made(byte_ns=2.0), 8)
    assert not vague.is_sure and vague.best.gain_low_ratio is not None and vague.best.gain_low_ratio < 0
    told = advice_headline(vague)
    assert re.match(r"No cap is surely better; bucket_cap_mb=2 is the best guess: −9 % \(−\d+ % to \+\d %\)\. ", told)


@pytest.mark.parametrize("size", [1, 8])
def test_as_many_plans_are_listed_as_the_heading_says(size: int) -> None:
    lines = advice_text(advised(Made(late=(0, 60 * MS, 0)), size), make_result()).splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("The best "))
    listed = lines[at + 1 :]
    assert int(lines[at].split()[2]) == (listed.index("") if "" in listed else len(listed)) > 1


def test_a_refusal_is_told_and_has_no_figures(found: Predictor) -> None:
    text = whatif_text(answer(found, {"a faster rank 9": Setting(even=9)}))
    assert "What this run cannot tell\n  a faster rank 9: there is no rank 9 in the run.\n" in text
    assert "exposed ms" not in text


def test_the_name_of_a_hook_is_text_and_nothing_else(found: Predictor) -> None:
    hooked = Predictor(replace(found.model, hook=EVIL * 1000))
    text = whatif_text(answer(hooked, {"fp16": Setting(fp16=True)}))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(text) < 4000


def test_settings_are_told_as_ddp_takes_them() -> None:
    assert setting_words(Setting()) == "as recorded"
    assert setting_words(Setting(caps=(5.0,), fp16=True)) == "bucket_cap_mb=5, fp16 hook"
    assert setting_words(Setting(caps=(1.0, 25.0))) == "bucket_cap_mb_list=[1, 25]"
    assert setting_words(Setting(bandwidth=2.0, ranks=8)) == "8 ranks, 2 × the bandwidth"


def test_advice_can_be_pasted(advice: Advice) -> None:
    assert advice.caps_mb
    assert f"\n  DistributedDataParallel(model, {advice.best.name})\n" in advice_text(advice, make_result())


def test_the_section_of_the_report_says_the_same_and_that_it_is_predicted(advice: Advice) -> None:
    html = advice_section(Forecast(advice))
    assert f"DistributedDataParallel(model, {advice.best.name})" in html
    assert "nothing of it was measured" in html
    assert html.count("<tr>") >= 2 + len(advice.limits)
    assert advice_section(Forecast()) == ""


def test_a_report_says_why_nothing_is_advised() -> None:
    html = advice_section(Forecast(refusal=f"2 modules {EVIL}"))
    assert "2 modules &lt;b onclick=x&gt;" in html
    assert 'id="what-to-change"' in page(make_result(), Forecast(refusal="2 modules"))


def test_a_report_has_many_ranks_on_paper_and_says_that_they_are(found: Predictor) -> None:
    text = page(make_result(), forecast_of(found))
    assert '<section id="on-many-ranks"><h2>On many ranks</h2>' in text
    assert f'<p class="sub">{SIMULATED} ' in text and "<b>Simulated</b>" in text
    figures = json.loads(text.split('id="figures">')[1].split("</script>")[0])
    (scaling,) = (figure for figure in figures if figure["key"] == "scaling")
    assert [line["x"] for line in scaling["data"]] == [list(RANKS)] * 3
    assert "On many ranks" not in page(make_result())


def test_a_summary_ends_with_advice_that_is_sure_to_win_and_with_no_other(advice: Advice) -> None:
    told = " ".join(in_short(Forecast(advice)))
    assert advice.is_sure
    assert told.startswith(f"Take {advice.best.name}: predicted is a step ")
    assert in_short(Forecast(replace(advice, is_sure=False))) == in_short(Forecast()) == []


def test_a_verdict_tells_whether_the_interval_held(found: Predictor, advice: Advice) -> None:
    held = verification_of(advice.recorded, found, found)
    assert held.is_within
    assert held.unlike is None
    assert "within the interval" in " ".join(verification_text(held).split())
    missed = verification_text(replace(held, is_within=False, error_ratio=0.31))
    assert "+31.0 %" in missed
    assert "outside of the interval" in " ".join(missed.split())


def test_a_forecast_that_failed_is_not_called_verified(found: Predictor, advice: Advice) -> None:
    missed = replace(verification_of(advice.recorded, found, found), is_within=False)
    assert verification_text(missed).startswith("Not confirmed: ")
    assert "diff --repeat" in " ".join(verification_text(missed).split())


def test_a_command_that_ignored_the_advice_verifies_nothing(found: Predictor, advice: Advice) -> None:
    told = verification_text(verification_of(advice.best, found, found))
    assert told.startswith("Not verified: of buckets in a step the command sent 1, and the advice is ")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Made(late=(0, 0, 0)), "the command ran 3 ranks and the recorded run had 2"),
        (Made(numels=(250_000,) * 7 + (250_001,)), "the command trained another model"),
    ],
)
def test_another_job_verifies_nothing(found: Predictor, advice: Advice, made: Made, why: str) -> None:
    other = Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 8))]))
    assert verification_text(verification_of(advice.recorded, other, found)).startswith(f"Not verified: {why}.")


def test_what_an_answer_rests_on_is_said_once_with_the_answers_that_it_is_about(answers: WhatIf) -> None:
    text = " ".join(whatif_text(answers).split())
    assert text.count("is extrapolated") == 1
    assert "is still exposed. (perfect overlap)" in text


def test_a_model_that_misses_much_of_the_recorded_step_is_not_to_be_relied_on(answers: WhatIf, advice: Advice) -> None:
    doubt = "Do not rely on this: played again as it was, the step takes 42 % less than recorded"
    whole = replace(answers, replay_error_ratio=-0.42), replace(advice, replay_error_ratio=-0.42)
    for text in (whatif_text(whole[0]), advice_text(whole[1], make_result()), advice_section(Forecast(whole[1]))):
        assert doubt in " ".join(text.split())
    for text in (whatif_text(answers), advice_text(advice, make_result()), advice_section(Forecast(advice))):
        assert "Do not rely" not in text
