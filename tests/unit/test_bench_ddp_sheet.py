"""What `bench ddp` says of measurements that are made up: each sentence follows from its numbers."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from html import escape
from typing import Any

import pytest

from ddptrace.bench.experiment import Repeats
from ddptrace.bench.experiments.ddp import EXPERIMENT, Options
from ddptrace.bench.experiments.ddp_sheet import NULL, Cell, over_cells
from ddptrace.errors import DdptraceError
from ddptrace.render.sheet import Sheet
from ddptrace.render.sheet_page import page

MS = 1_000_000
COLUMNS = [
    "model",
    "backend",
    "world_size",
    "global_batch_size",
    "warmup_steps",
    "benchmark_steps",
    "step_time_avg_s",
    "step_time_std_s",
    "comm_time_avg_s",
    "comm_time_std_s",
    "comm_frac_avg",
    "comm_frac_std",
]


def truth(comm: float, exposed: float, window: float = 100) -> dict[str, Any]:
    return {
        "window_ns": round(window * MS),
        "comm_ns": round(comm * MS),
        "hidden_ns": round((comm - exposed) * MS),
        "exposed_ns": round(exposed * MS),
        "overlap_ratio": 1 - exposed / comm,
        "evidence": "backend",
        "transfer_ns": 15 * MS,
    }


def rounds(*round_ms: float) -> list[list[int]]:
    return [[round(ms * MS)] * 2 for ms in round_ms]


CELL = Cell(
    "gpt",
    "25",
    "gloo",
    2,
    50,
    1000,
    4,
    {
        "naive": rounds(130, 131, 132),
        "bucketed": rounds(101, 100, 99),
        "ddp": rounds(100, 100, 100),
        NULL: rounds(99, 100, 101),
    },
    {
        "naive": {"step_ns": [130 * MS, 120 * MS], "comm_ns": [39 * MS, 36 * MS]},
        "bucketed": {"step_ns": [100 * MS] * 2, "comm_ns": [MS // 2] * 2},
        "ddp": {"step_ns": [100 * MS] * 2, "comm_ns": [3 * MS // 10] * 2},
    },
    {"naive": truth(30, 30, 130), "bucketed": truth(21, 5), "ddp": truth(20, 4)},
)


def made(*cells: Cell) -> Sheet:
    options = Options(models=("gpt",), repeats=Repeats(3, 2, 1))
    setup = {"ranks": "2 on 1 host", "backend": "gloo", "device": "CPU", "torch": "2"}
    return EXPERIMENT.sheet(options, [{"setup": setup, "cells": [asdict(cell) for cell in cells]}])


def said(words: str, *cells: Cell) -> str:
    """The one sentence that begins so."""
    (found,) = [sentence for sentence in made(*cells).words if sentence.startswith(words)]
    return found


def slow(*round_ms: float) -> Cell:
    return replace(CELL, cap_mb="1", times_ns=CELL.times_ns | {"bucketed": rounds(*round_ms)})


def test_the_table_has_the_columns_that_were_asked_for_in_their_order() -> None:
    heads, row = made(CELL).grids[0].heads, made(CELL).grids[0].rows[0]
    assert [head for head in heads if head in COLUMNS] == COLUMNS
    cells = dict(zip(heads, row, strict=True))
    assert {name: cells[name] for name in COLUMNS} == {
        "model": "gpt",
        "backend": "gloo",
        "world_size": "2",
        "global_batch_size": "8",
        "warmup_steps": "3",
        "benchmark_steps": "6",
        "step_time_avg_s": "0.131000",
        "step_time_std_s": "0.000894",
        "comm_time_avg_s": "0.037500",
        "comm_time_std_s": "0.002121",
        "comm_frac_avg": "0.300000",
        "comm_frac_std": "0.000000",
    }
    assert (cells["true comm ms"], cells["hidden ms"], cells["exposed ms"]) == ("30.0", "0.00", "30.0")


def test_a_stopwatch_that_says_little_is_explained_with_both_numbers() -> None:
    told = said("stock DDP with", CELL)
    assert "shows 0.30 ms, 0.3 % of its step of 100.0 ms; in the trace the backend communicated for 20.0 ms" in told
    assert "20.0 ms, 20.0 % of its step of 100.0 ms, 4.00 ms of it exposed" in told
    assert "in C++" in told


def test_nothing_is_explained_where_the_stopwatch_says_as_much_as_the_trace() -> None:
    seen = CELL.watched | {"ddp": {"step_ns": [100 * MS], "comm_ns": [19 * MS]}}
    told = said("stock DDP with", replace(CELL, watched=seen))
    assert told.endswith("here the stopwatch misses little.") and "C++" not in told


def test_a_blocking_call_overstates_and_the_last_ranks_own_time_stands_beside_it() -> None:
    told = said("naive with", CELL)
    assert "shows 37.5 ms" in told and "communicated for 30.0 ms" in told and "it was 15.0 ms" in told
    assert "overstates" in told
    seen = CELL.watched | {"naive": {"step_ns": [130 * MS], "comm_ns": [29 * MS]}}
    assert said("naive with", replace(CELL, watched=seen)).endswith("does not overstate.")


def test_a_run_without_communication_is_told_as_such() -> None:
    silent = dict.fromkeys(truth(1, 1)) | {"evidence": ""}
    cell = replace(CELL, traced=CELL.traced | {"ddp": silent})
    assert said("The trace of stock DDP", cell).endswith("no communication to compare with the stopwatch's.")


def test_the_verdict_is_the_median_over_cells_beside_the_null_control() -> None:
    told = said("Over 2 cells", CELL, slow(102, 102, 102))
    assert told.startswith(
        "Over 2 cells the median of the ratios bucketed ÷ ddp is 1.010 (by resampling 3 rounds: 1.00"
    )
    assert "is 1.000 (by resampling 3 rounds: 0.99" in told
    six = replace(CELL, times_ns={name: times * 2 for name, times in CELL.times_ns.items()})
    assert "bucketed ÷ ddp is 1.000 (95 %: 0.99" in said("Over 1 cell", six)
    assert said("In no cell", CELL, slow(102, 102, 102)) == (
        "In no cell does bucketed take more than 1.05 times as long as stock DDP."
    )


def test_a_cell_above_the_bound_is_named_with_what_the_traces_say() -> None:
    cell = replace(slow(110, 111, 109), traced=CELL.traced | {"bucketed": truth(21, 7, 108)})
    told = said("Bucketed is above 1.05 with gpt at cap 1 MiB on 2 ranks: 1.100 (1.090 .. 1.110)", CELL, cell)
    assert "exposed communication takes 3.00 ms more of a step, and all else 5.00 ms more" in told
    assert told.endswith("100 µs for each of 50 parameters.")


def test_a_cell_above_the_bound_within_the_noise_is_named_as_that() -> None:
    assert said("Bucketed is above 1.05", CELL, slow(90, 106, 120)).endswith("that is within the noise.")


def test_traces_that_do_not_show_a_slow_cell_are_not_made_to_explain_it() -> None:
    cell = replace(slow(110, 111, 109), traced=CELL.traced | {"bucketed": truth(21, 7, 99)})
    assert said("Bucketed is above 1.05", CELL, cell).endswith("do not show the difference (99.0 and 100.0 ms).")


def test_no_text_stands_in_the_page_twice() -> None:
    sheet = made(CELL, slow(102, 102, 102))
    texts = [*(chart.caption for chart in sheet.charts), *(grid.note for grid in sheet.grids)]
    shown = re.sub("<script.*?</script>", "", page(sheet), flags=re.DOTALL)
    assert [shown.count(escape(text)) for text in texts] == [1] * 4


def test_the_intervals_of_three_rounds_are_called_their_range() -> None:
    assert made(CELL).grids[1].heads[5:] == ("range of the rounds", "null control", "null control's range")
    six = replace(CELL, times_ns={name: times * 2 for name, times in CELL.times_ns.items()})
    assert made(six).grids[1].heads[5:] == ("95 % interval", "null control", "null control's 95 % interval")


def test_strategies_that_noise_covers_are_not_ranked() -> None:
    six = replace(CELL, times_ns={name: times * 2 for name, times in CELL.times_ns.items()})
    told = said("A step of gpt at cap 25", six)
    assert "takes naive 1.31 times stock DDP's; no difference beyond the noise: bucketed 1.00;" in told


def test_of_fewer_than_six_rounds_no_strategy_is_said_to_take_longer() -> None:
    told = said("3 rounds of gpt at cap 25 MiB on 2 ranks", CELL)
    assert told.endswith("gave naive 1.31, bucketed 1.00 times stock DDP's step, which proves no difference.")
    assert not any("takes naive" in sentence for sentence in made(CELL).words)


def test_the_interval_over_cells_does_not_grow_with_the_distance_between_them() -> None:
    assert over_cells([[1.0, 1.0], [1.5, 1.5], [2.0, 2.0]]) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"caps_mb": ("5", "0")}, "a cap is a number of MiB above 0"),
        ({"caps_mb": ("big",)}, "a cap is a number of MiB above 0"),
        ({"strategies": ("naif",)}, "no strategy is called 'naif'; choose from: naive, flat, overlap, bucketed, ddp"),
        ({"models": ("gtp",)}, "no workload is called 'gtp'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DdptraceError, match=sentence):
        Options(**wrong)
