"""What a reader gets of predictions and advice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptrace.analysis.whatif.advise import Advice, advise
from ddptrace.analysis.whatif.answer import answer, usual
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Setting, WhatIf
from ddptrace.analysis.whatif.verify import verdict_of
from ddptrace.render.advice_section import advice_section
from ddptrace.render.whatif import whatif_text
from ddptrace.render.whatif_advice import advice_text, verdict_text
from ddptrace.render.whatif_words import setting_words
from ddptrace.render.words import WIDTH
from tests.unit.made_whatif import Made, in_buckets, made_ranks

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
    for text in (whatif_text(answers), advice_text(advice)):
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
    assert f"{-100 * (free.gain_ratio or 0):+.0f} %" in line


def test_a_refusal_is_told_and_has_no_figures(found: Predictor) -> None:
    text = whatif_text(answer(found, {"a faster rank 9": Setting(evened=9)}))
    assert "What this run cannot tell\n  a faster rank 9: there is no rank 9 in the run.\n" in text
    assert "exposed ms" not in text


def test_the_name_of_a_hook_is_text_and_nothing_else(found: Predictor) -> None:
    hooked = Predictor(replace(found.model, hook=EVIL * 1000))
    text = whatif_text(answer(hooked, {"fp16": Setting(hook="fp16")}))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert len(text) < 4000


def test_settings_are_told_as_ddp_takes_them() -> None:
    assert setting_words(Setting()) == "as recorded"
    assert setting_words(Setting(caps_mb=(5.0,), hook="fp16")) == "bucket_cap_mb=5, fp16 hook"
    assert setting_words(Setting(caps_mb=(1.0, 25.0))) == "bucket_cap_mb_list=[1, 25]"
    assert setting_words(Setting(bandwidth=2.0, ranks=8)) == "8 ranks, 2 × the bandwidth"


def test_advice_can_be_pasted(advice: Advice) -> None:
    assert advice.caps_mb
    assert f"\n  DistributedDataParallel(model, {advice.best.name})\n" in advice_text(advice)


def test_the_section_of_the_report_says_the_same_and_that_it_is_predicted(advice: Advice) -> None:
    html = advice_section(advice)
    assert f"DistributedDataParallel(model, {advice.best.name})" in html
    assert "nothing of it was measured" in html
    assert html.count("<tr>") >= 2 + len(advice.limits)
    assert advice_section(None) == ""


def test_a_verdict_tells_whether_the_interval_held(found: Predictor, advice: Advice) -> None:
    held = verdict_of(advice.recorded, found)
    assert held.is_within
    assert held.is_as_planned
    assert "within the interval" in " ".join(verdict_text(held).split())
    missed = verdict_text(replace(held, is_within=False, error_ratio=0.31))
    assert "+31.0 %" in missed
    assert "outside of the interval" in " ".join(missed.split())


def test_a_command_that_ignored_the_advice_verifies_nothing(found: Predictor, advice: Advice) -> None:
    told = verdict_text(verdict_of(advice.best, found))
    assert told.startswith("Not verified: the command sent 1 bucket a step")
