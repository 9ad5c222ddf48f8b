"""The report says what the tables say, takes no name for markup, and stays small whatever the run's size."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from ddptrace.analysis.device.idle import LONG_GAP_NS
from ddptrace.analysis.result import About, Result
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.device import LaunchRow, RankRow
from ddptrace.analysis.tables.ranks import SuspectRow
from ddptrace.analysis.tables.steps import PhaseRow, SavingRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.whatif.advise import advise
from ddptrace.analysis.whatif.answer import Forecast
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.findings import Finding
from ddptrace.render.figure import MARKS_MAX, Figure
from ddptrace.render.headline import headline
from ddptrace.render.markup import folded
from ddptrace.render.report import drawn, page, script_json, write_report
from ddptrace.render.report_top import about_html, evidence_line
from ddptrace.render.step_timeline import timeline_figure
from ddptrace.render.steps import steps_figure
from ddptrace.units import duration
from tests.made import empty_result, make_result, with_savings
from tests.unit.made_whatif import Made, in_buckets, made_ranks

BUNDLE_SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
EVIL = (
    "</script><script>window.hacked=1</script>",
    '<img src=x onerror="window.hacked=2">',
    '<a href="javascript:window.hacked=3">x</a>',
    "%{x} $a$ &lt;b&gt; \u2028 <!-- \"quoted\" 'single'",
)


def evil_result() -> Result:
    """Every text that comes from a run, made of markup."""
    result = make_result(2, 4, 3)
    return dataclasses.replace(
        result,
        run_id=EVIL[1],
        about=About(EVIL[0], EVIL, EVIL[1], EVIL, None, EVIL, EVIL[2], "slurm", EVIL[3], EVIL[0], EVIL[1]),
        ranks=Table(RankRow, [dataclasses.replace(row, host=EVIL[0]) for row in result.ranks]),
        phases=Table(PhaseRow, [dataclasses.replace(row, phase=EVIL[2]) for row in result.phases]),
        buckets=Table(BucketRow, [dataclasses.replace(row, parameters=EVIL) for row in result.buckets]),
        collectives=Table(
            CollectiveRow, [dataclasses.replace(row, op=EVIL[1], bucket=None) for row in result.collectives]
        ),
        findings=Table(Finding, [Finding(EVIL[0], "error", EVIL[1], " ".join(EVIL))] * 7),
    )


class Elements(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def obeyed(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """The elements of a report that a name must have made: the report's own links stay on the page."""
    elements = Elements(text).found
    assert sum(tag == "script" for tag, _ in elements) == 3
    strange = {"img", "iframe", "object", "link", "base", "form", "svg", "math"}
    return [
        (tag, attrs)
        for tag, attrs in elements
        if tag in strange
        or any(name.startswith("on") or name == "src" for name in attrs)
        or not (attrs.get("href") or "#").startswith("#")
    ]


def figures_of(result: Result) -> list[Figure]:
    return drawn(result, summarize(result))


def marks(figure: Figure) -> int:
    return sum(len(trace["x"]) for trace in figure.data)


def test_no_name_from_a_run_becomes_markup() -> None:
    assert obeyed(page(evil_result())) == []


def test_names_are_there_to_be_read() -> None:
    text = page(evil_result())
    assert "&lt;img src=x onerror=&quot;window.hacked=2&quot;&gt;" in text


def test_the_first_step_shows_no_sign_that_a_name_smuggles_in() -> None:
    row = SavingRow("work", 90, 0.9, 100, "\x1b[31mlaunch\u202e\x07", "launch-bound", LONG_GAP_NS + 1)
    text = page(dataclasses.replace(make_result(), savings=Table(SavingRow, [row])))
    assert "look for what holds the host in \\x1b[31mlaunch\\u202e\\x07." in text
    assert not set(text) & set("\x1b\u202e\x07")


def test_no_text_ends_the_script_that_holds_it() -> None:
    text = script_json(list(EVIL))
    assert "<" not in text and ">" not in text
    assert json.loads(text) == list(EVIL)


def test_plotly_is_told_text_and_not_markup() -> None:
    for figure in figures_of(evil_result()):
        shown = json.dumps(figure.data) + json.dumps(figure.layout)
        assert not re.search(r"<(?!/?b>|br>)", shown), figure.key


def test_the_page_holds_plotly_once_and_names_no_address_to_load(tmp_path: Path) -> None:
    text = write_report(make_result(), tmp_path / "report.html").read_text("utf-8")
    assert text.count("* plotly.js (cartesian") == 1
    assert len(text) < 2_000_000
    assert "src=" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert "default-src 'none'" in text


def test_the_bundle_of_plotly_js_is_what_npm_has_and_comes_with_its_licence() -> None:
    folder = files("ddptrace.render") / "plotly"
    bundle = (folder / "plotly-cartesian.min.js").read_bytes()
    # npm pack plotly.js-cartesian-dist-min@4.1.1
    assert hashlib.sha256(bundle).hexdigest() == BUNDLE_SHA256
    assert "MIT License" in (folder / "LICENSE").read_text()


def about() -> About:
    return About(
        name="gpt & co", tags=("baseline", "cap 25"), notes="a note", models=("GPT",), gradient_nbytes=42_600_000,
        command=("python", "train.py", "--lr", "1 0"), commit="0123456789abcdef" * 2, scheduler="slurm", job_id="42",
        torch="2.13.0", python="3.11.7",
    )  # fmt: skip


def test_the_header_says_what_the_run_is_called_and_what_it_ran() -> None:
    html = about_html(dataclasses.replace(make_result(2, 4, 3), about=about()))
    assert '<p class="name">gpt &amp; co</p>' in html and "<li>baseline</li><li>cap 25</li>" in html
    assert "<pre><code>python train.py --lr &#x27;1 0&#x27;</code></pre>" in html
    told = re.sub(r"<[^>]+>", " ", html)
    for words in ("a note", "GPT, 42.6 MB of gradients", "torch 2.13.0, Python 3.11.7", "42 (Slurm)", "0123456789ab "):
        assert words in told


def test_the_header_has_nothing_of_what_is_not_known() -> None:
    foreign = dataclasses.replace(make_result(2, 4, 3), about=About(), recorded=False)
    assert about_html(foreign) == ""


@pytest.mark.parametrize("result", [make_result(), make_result(6, 30, 4), evil_result()], ids=["few", "many", "evil"])
def test_plotly_knows_every_property_of_the_figures(result: Result) -> None:
    import plotly.graph_objects  # type: ignore[import-untyped]

    for figure in figures_of(result):
        plotly.graph_objects.Figure(figure.data, figure.layout)


def test_the_bars_of_a_step_add_up_to_its_window() -> None:
    result = make_result(2, 5, 4)
    figure = steps_figure(result.steps)
    assert figure is not None
    for rank, axis in ((0, "y"), (1, "y2")):
        heights = zip(*(trace["y"] for trace in figure.data if trace["yaxis"] == axis), strict=True)
        windows = [row.window_ns / 1e6 for row in result.steps if row.rank == rank]
        assert [sum(parts) for parts in heights] == pytest.approx(windows, abs=1e-5)


def many_steps(ranks: int, steps: int) -> list[StepRow]:
    row = make_result(1, 1, 2).steps[0]
    return [dataclasses.replace(row, rank=rank, step=step) for step in range(steps) for rank in range(ranks)]


@pytest.mark.parametrize(("ranks", "steps"), [(1, 501), (2, 9000), (300, 7), (64, 1000)])
def test_many_steps_are_drawn_as_few_bars_that_mean_the_same(ranks: int, steps: int) -> None:
    rows = many_steps(ranks, steps)
    figure = steps_figure(rows)
    assert figure is not None and marks(figure) <= MARKS_MAX
    bars = [trace["y"] for trace in figure.data if trace["type"] == "bar"]
    means = [sum(parts) for parts in zip(*bars, strict=True)]
    assert means == pytest.approx([rows[0].window_ns / 1e6] * len(means), abs=1e-5)


def with_lengths(result: Result, lengths: dict[int, int]) -> list[StepRow]:
    """The steps, some of them so many times as long, by more compute."""
    return [
        dataclasses.replace(
            row, window_ns=times * row.window_ns, compute_ns=row.compute_ns + (times - 1) * row.window_ns
        )
        for row in result.steps
        for times in [lengths.get(row.step, 1)]
    ]


def test_a_first_step_that_would_flatten_the_others_is_cut_off_with_its_length() -> None:
    rows = with_lengths(make_result(2, 12, 4), {0: 10})
    figure = steps_figure(rows)
    assert figure is not None
    # THEN the axes end above all steps but the first
    longest_ms = max(row.window_ns for row in rows if row.step) / 1e6
    tops = [figure.layout[axis]["range"] for axis in ("yaxis", "yaxis2")]
    assert all(begin == 0 and longest_ms < end < 2 * longest_ms for begin, end in tops)
    # AND both ranks' first steps are named at their bars
    seconds = [next(row.window_ns for row in rows if (row.rank, row.step) == (rank, 0)) / 1e9 for rank in (0, 1)]
    notes = figure.layout["annotations"]
    assert [note["text"] for note in notes] == [f"↑ step 0: {length:.2f} s" for length in seconds]
    assert [(note["x"], note["yref"]) for note in notes] == [(0.5, "y domain"), (0.5, "y2 domain")]
    assert "2 bars are cut off at the top" in figure.caption


@pytest.mark.parametrize("lengths", [{}, {0: 2}, dict.fromkeys(range(6), 10)], ids=["even", "twice", "half"])
def test_steps_that_differ_less_or_that_are_many_are_not_cut_off(lengths: dict[int, int]) -> None:
    figure = steps_figure(with_lengths(make_result(1, 12, 4), lengths))
    assert figure is not None
    assert "range" not in figure.layout["yaxis"] and not figure.layout["annotations"]
    assert "cut off" not in figure.caption


def test_a_long_step_at_the_end_is_named_to_its_left() -> None:
    figure = steps_figure(with_lengths(make_result(1, 20, 4), {0: 10, 19: 20}))
    assert figure is not None
    first, last = sorted(figure.layout["annotations"], key=lambda note: float(note["x"]))
    assert (first["x"], first["xanchor"], last["x"], last["xanchor"]) == (0.5, "left", 18.5, "right")
    assert first["yshift"] != last["yshift"]


def test_a_run_in_which_the_tap_failed_is_not_told_what_no_run_sees() -> None:
    spots = "what child processes do", "collectives that C++ issues"
    whole = dataclasses.replace(make_result(2), blind_spots=spots[:1])
    assert "does not see in any run" in page(whole)
    lost = [
        Finding("tap-failed", "warning", f"rank {rank}", "the dispatcher tap does not work with this <torch>")
        for rank in (0, 1)
    ]
    text = page(dataclasses.replace(whole, blind_spots=spots, findings=Table(Finding, lost)))
    # THEN what is said of this run is not said of any, and stands in the open
    assert "does not see in any run" not in text
    assert "does not see in this run" in text and "collectives that C++ issues" in text
    assert "<li>On rank 0, rank 1: the dispatcher tap does not work with this &lt;torch&gt;.</li>" in text


def test_steps_of_ranks_are_called_the_same_everywhere() -> None:
    text = page(make_result(2, 6))
    assert "rank-steps" in text
    assert "rank steps" not in text


def test_every_figure_of_a_large_run_has_a_bounded_number_of_marks() -> None:
    for figure in figures_of(make_result(10, 60, 60)):
        assert 0 < marks(figure) <= MARKS_MAX, figure.key


def test_the_timeline_shows_each_bucket_where_it_ran() -> None:
    result = make_result(1, 3, 4)
    figure = timeline_figure(result)
    assert figure is not None
    step = int(re.findall(r"Step (\d+)", figure.caption)[0])
    [comm] = [trace for trace in figure.data if trace["name"] == "communication, hidden"]
    begin = result.steps[step].begin_at_ns
    drawn_spans = [(base, base + length) for base, length in zip(comm["base"], comm["x"], strict=True)]
    rows = [row for row in result.buckets if row.step == step]
    expected = [((row.exec_start_at_ns - begin) / 1e6, (row.exec_end_at_ns - begin) / 1e6) for row in rows]  # type: ignore[operator]
    assert [x for span in drawn_spans for x in span] == pytest.approx([x for span in expected for x in span], abs=1e-5)


def test_the_timeline_shows_as_exposed_what_the_table_calls_exposed() -> None:
    result = make_result(1, 3, 4)
    figure = timeline_figure(result)
    assert figure is not None
    step = int(re.findall(r"Step (\d+)", figure.caption)[0])
    [exposed] = [trace for trace in figure.data if trace["name"] == "communication, exposed"]
    table_ms = sum(row.exposed_ns or 0 for row in result.buckets if row.step == step) / 1e6
    wall_ms = result.steps[step].wall_ns / 1e6
    # Pauses in compute too short to see are closed in the drawing: at most a hundredth of the step in this run.
    assert table_ms - wall_ms / 100 <= sum(exposed["x"]) <= table_ms + 1e-6


def test_the_headline_is_what_could_be_won_in_percent_and_milliseconds_and_says_at_most() -> None:
    summary = summarize(make_result())
    exposed = next(part for part in summary.parts if part.name == "exposed_comm")
    top = headline(with_savings(make_result()), summary)
    assert top.number == f"{100 * exposed.ratio:.0f} %"
    assert summary.worst is not None
    worst = f"bucket {summary.worst.index} costs most"
    told = f"at most: {exposed.ns / 1e6:.1f} ms of {(summary.window_ns or 0) / 1e6:.0f} ms; {worst}."
    assert top.words == f"of the typical step could be won by hiding communication, {told}"
    assert not top.calm
    # AND what it rests on stands below it
    line = evidence_line(summary)
    assert "an upper bound" in line and f"Mean of {summary.steps} rank-steps" in line and "evidence backend" in line


def test_the_headline_is_the_host_where_the_device_waits_more_for_it_than_for_communication() -> None:
    result = make_result()
    shares = {ratio: [launches(row, ratio) for row in result.steps] for ratio in (0.001, 0.9)}
    runs = {ratio: dataclasses.replace(result, launches=Table(LaunchRow, rows)) for ratio, rows in shares.items()}
    told = {ratio: headline(with_savings(run), summarize(run)) for ratio, run in runs.items()}
    assert told[0.9].number == "90 %"
    assert told[0.9].words.startswith("of the typical step the device waits for the host to launch work: ")
    assert "by hiding communication" in told[0.001].words


def test_the_headline_is_the_rank_that_costs_more_than_the_rest_of_the_exposed_communication() -> None:
    """The others wait for it in collectives, so its cost is a part of that communication."""
    result = make_result()
    exposed = next(part for part in summarize(result).parts if part.name == "exposed_comm")
    won = "of the typical step could be won if rank 1 were as fast as the others (data):"
    for part, expected in ((1.5, True), (0.6, True), (0.4, False)):
        cost, ratio = round(part * exposed.ns), part * exposed.ratio
        told = f"{won} {duration(cost)} of {duration(cost / ratio)}."
        late = SuspectRow(1, "node1", "data", "data", cost, ratio, cost, cost, True, 38, "it sleeps")
        text = page(with_savings(dataclasses.replace(result, suspects=Table(SuspectRow, [late]))))
        assert (f'<span class="number">{100 * ratio:.0f} %</span> <span class="words">{told}' in text) == expected


def launches(step: StepRow, ratio: float) -> LaunchRow:
    idle_ns = round(ratio * step.window_ns)
    return LaunchRow(step.rank, step.step, 5, 2, 1, 2, 3, step.window_ns, idle_ns, idle_ns, launch_bound=ratio > 0.1)


def test_the_headline_is_calm_where_communication_is_hidden() -> None:
    rows = [dataclasses.replace(row, exposed_comm_ns=0, hidden_ns=row.comm_ns) for row in make_result().steps]
    result = dataclasses.replace(make_result(), steps=Table(StepRow, rows))
    top = headline(with_savings(result), summarize(result))
    assert (top.number, top.first_step, top.calm) == ("0 %", "", True)
    assert top.words.endswith("at most: 0 ns of 118 ms. Look elsewhere for time.")


def test_a_run_without_steps_says_so() -> None:
    assert "no step was found" in page(empty_result())
    assert headline(empty_result(), summarize(empty_result())).number == "0 steps"


def test_findings_of_one_kind_are_told_three_times_and_then_counted() -> None:
    text = page(evil_result())
    assert text.count('<li class="error">') == 3
    assert "… and 4 more findings of the kind" in text


def test_what_to_do_stands_first_and_links_to_where_its_numbers_are() -> None:
    told = {
        "exposed-bucket": ("warning", "#exposed-time-per-bucket"),
        "clock-bent": ("warning", None),  # this run has no section of clocks
        "steps_found": ("info", None),
    }
    found = [Finding(code, severity, "run", f"message {code}") for code, (severity, _) in told.items()]
    text = page(dataclasses.replace(make_result(), findings=Table(Finding, found[::-1])))
    places = [text.index(f"message {code}") for code in told]
    assert places == sorted(places)
    for code, (_, link) in told.items():
        item = re.search(f"message {code}</p>(.*?)</li>", text)
        assert item is not None and re.findall('href="(.*?)"', item[1]) == ([link] if link else [])


def test_advice_stands_behind_what_to_look_at_and_before_the_findings() -> None:
    made = Made(byte_ns=20.0)
    advice = advise(Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 8))])))
    found = [Finding("exposed-bucket", "warning", "run", "look"), Finding("clock-bent", "warning", "run", "else")]
    result = dataclasses.replace(make_result(), findings=Table(Finding, found))
    titles = re.findall("<h2>(.*?)</h2>", page(result, Forecast(advice)))
    assert titles[:3] == ["Look at next", "What to change", "Findings"]
    assert titles == [*titles[:1], "What to change", *re.findall("<h2>(.*?)</h2>", page(result))[1:]]


def test_the_contents_link_to_every_section_and_to_nothing_else() -> None:
    text = page(make_result())
    nav = re.search("<nav.*?</nav>", text, re.S)
    assert nav is not None
    assert re.findall('href="#(.*?)"', nav[0]) == re.findall('<section id="(.*?)">', text)
    assert all(f'id="{key}"' in text for key in re.findall('href="#(.*?)"', text))


def test_a_bucket_is_linked_to_the_bars_that_are_drawn_of_it() -> None:
    result = make_result(2, 4, 5)
    figure = timeline_figure(result)
    assert figure is not None
    linked = set(re.findall('data-bucket="(.*?)"', page(result)))
    for name in ("gradients arriving", "communication, hidden"):
        [keys] = [trace["customdata"] for trace in figure.data if trace["name"] == name]
        assert linked == set(keys) == {f"0 1 {index}" for index in range(5)}


def test_names_of_ten_megabytes_or_that_turn_the_line_neither_blow_up_the_report_nor_turn_it() -> None:
    result, long = make_result(2, 4, 3), "x" * 10_000_000 + "<b>\u202e"
    evil = dataclasses.replace(
        result,
        run_id=long,
        ranks=Table(RankRow, [dataclasses.replace(row, host=long) for row in result.ranks]),
        phases=Table(PhaseRow, [dataclasses.replace(row, phase=long) for row in result.phases]),
        buckets=Table(BucketRow, [dataclasses.replace(row, parameters=(long,) * 300) for row in result.buckets]),
        collectives=Table(CollectiveRow, [
            dataclasses.replace(row, op=long, group=long, dtype=long, module=long, site=long, bucket=None)
            for row in result.collectives
        ]),
        findings=Table(Finding, [Finding(long, "error", long, long)] * 7),
        blind_spots=(long,) * 3,
    )  # fmt: skip
    text = page(evil)
    assert len(text) < len(page(result)) + 500_000
    assert "\u202e" not in text and "&lt;b&gt;\\u202e" in text and obeyed(text) == []


def test_what_was_not_measured_is_listed() -> None:
    text = page(make_result(2, 3, 2))
    assert "When 6 collectives of 18 ran is unknown" in text


def test_a_column_in_which_nothing_was_measured_is_left_out_of_a_table_and_of_its_fold() -> None:
    heads = (("name", ""), ("known", ""), ("unknown", ""))
    rows = [[f"row {at}", "-" if at else "1", "-"] for at in range(4)]
    shown = folded(heads, rows, 2, "rows")
    assert re.findall(r"<th[^>]*>(\w+)</th>", shown) == ["name", "known"] * 2
    assert shown.count("<td") == 8
