"""What computing beside communication costs, where it was planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from analysis_records import MAIN, Piece, call, comm_piece, gpu_window, mark, rank, step, window

from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.steps.variation import contention_rows
from ddptrace.analysis.tables.steps import ContentionRow
from ddptrace.load.tables import Call, OperatorWork, RankRun, Window
from ddptrace.schema import Phase

STEP = 1000


def rows(made: RankRun) -> list[ContentionRow]:
    return list(contention_rows(view_of(made)))


def kernels(k: int, comm: bool, gemm: tuple[int, ...], name: str = "gemm") -> list[Piece]:
    """Step k: kernels of these lengths 100 apart, beside communication or not."""
    at = k * STEP
    pieces = [
        Piece(at + 300 + 100 * n, at + 300 + 100 * n + length, (at + 10 + n, at + 11 + n), name=name)
        for n, length in enumerate(gemm)
    ]
    return pieces + ([comm_piece(at + 250, at + 900, (at + 5, at + 6))] if comm else [])


def gpu(*pieces: Piece, steps: int) -> RankRun:
    marks = [step(k, k * STEP, (k + 1) * STEP) for k in range(steps)]
    return rank(steps=marks, windows=[gpu_window(0, steps * STEP, *pieces)])


def test_kernels_twice_as_long_beside_communication_are_taxed_by_just_that() -> None:
    pieces = [piece for k in range(6) for piece in kernels(k, comm=k % 2 == 0, gemm=(40,) if k % 2 else (80,))]
    assert rows(gpu(*pieces, steps=6)) == [ContentionRow(0, "gemm", 3, 3, 40, 80, 3 * 80 - 3 * 40)]


def test_kernels_of_one_name_and_different_size_are_told_apart_by_their_place_in_the_step() -> None:
    """The first is small and runs alone where the second, ten times as long, runs beside communication."""
    pieces = []
    for k in range(6):
        at = k * STEP
        pieces += kernels(k, comm=False, gemm=(8, 80))
        pieces.append(comm_piece(at + 390, at + 900, (at + 5, at + 6)))
    assert rows(gpu(*pieces, steps=6)) == []


def test_each_place_is_compared_with_itself_and_the_name_told_once() -> None:
    pieces = [piece for k in range(6) for piece in kernels(k, k % 2 == 0, (10, 50) if k % 2 else (11, 60))]
    assert rows(gpu(*pieces, steps=6)) == [ContentionRow(0, "gemm", 6, 6, 30, round(71 / 2), 3 * 1 + 3 * 10)]


def test_fewer_than_three_of_a_kind_tell_nothing() -> None:
    pieces = [piece for k in range(5) for piece in kernels(k, comm=k % 2 == 1, gemm=(40,))]
    assert rows(gpu(*pieces, steps=5)) == []


def test_a_kernel_that_ran_partly_beside_communication_is_left_out() -> None:
    def part(k: int, beside: int) -> list[Piece]:
        at = k * STEP
        return [*kernels(k, False, (100,)), comm_piece(at + 400 - beside, at + 900, (at + 5, at + 6))]

    whole = [piece for k in range(3) for piece in part(k, 90)]
    half = [piece for k in range(3, 6) for piece in part(k, 89)]
    alone = [piece for k in range(6, 9) for piece in kernels(k, False, (70,))]
    assert rows(gpu(*whole, *half, *alone, steps=9)) == [ContentionRow(0, "gemm", 3, 3, 70, 100, 90)]


def test_a_step_with_more_of_them_than_most_is_left_out() -> None:
    pieces = [piece for k in range(6) for piece in kernels(k, comm=k % 2 == 0, gemm=(40,) if k % 2 else (80,))]
    odd = kernels(6, comm=True, gemm=(500, 7))
    assert rows(gpu(*pieces, *odd, steps=7)) == [ContentionRow(0, "gemm", 3, 3, 40, 80, 120)]


def test_kernels_of_different_scopes_are_different() -> None:
    def scoped(k: int, module: str) -> list[Piece]:
        made = kernels(k, comm=k % 2 == 0, gemm=(40,) if k % 2 else (80,))
        return [replace(piece, module=module) if piece.name == "gemm" else piece for piece in made]

    pieces = [piece for k in range(6) for piece in scoped(k, f"layer{k % 2}")]
    assert rows(gpu(*pieces, steps=6)) == []


def test_the_dearest_name_comes_first_and_what_gains_last() -> None:
    pieces = []
    for k in range(6):
        pieces += kernels(k, k % 2 == 0, (40,) if k % 2 else (45,))
        at = k * STEP
        for n, (name, alone, beside) in enumerate((("relu", 10, 20), ("norm", 30, 20))):
            length, begin = alone if k % 2 else beside, at + 500 + 100 * n
            pieces.append(Piece(begin, begin + length, (at + 20 + n, at + 21 + n), name=name))
    taxes = [(row.name, row.tax_ns) for row in rows(gpu(*pieces, steps=6))]
    assert taxes == [("relu", 30), ("gemm", 15), ("norm", -30)]


def on_host(operators: Sequence[tuple[str, int, int]], calls: Sequence[Call], steps: int, until: int) -> RankRun:
    """`until`: end of the profiler's window."""
    names = tuple(dict.fromkeys(name for name, _, _ in operators))
    columns = np.array([(names.index(name), begin, end) for name, begin, end in operators], np.int64).T
    looked: Window = replace(window(0, until), operators=OperatorWork(*columns, names))
    marks = [step(k, k * STEP, (k + 1) * STEP) for k in range(steps)]
    phases = [mark(Phase.FORWARD, k * STEP + 100, k * STEP + 900, thread=MAIN) for k in range(steps)]
    return rank(steps=marks, phases=phases, windows=[looked], calls=calls)


def operators_beside(steps: int) -> tuple[list[tuple[str, int, int]], list[Call]]:
    """In every other step communication runs, and the operator takes 70 instead of 50."""
    found = [("aten::mm", k * STEP + 200, k * STEP + 200 + (50 if k % 2 else 70)) for k in range(steps)]
    calls = [call(k + 1, k * STEP + 150, ran=(k * STEP + 160, k * STEP + 800)) for k in range(0, steps, 2)]
    return found, calls


def test_operators_of_a_host_are_compared_as_kernels_are() -> None:
    made = on_host(*operators_beside(6), steps=6, until=6 * STEP)
    assert rows(made) == [ContentionRow(0, "aten::mm", 3, 3, 50, 70, 60)]


def test_a_step_that_the_window_does_not_hold_whole_counts_for_nothing() -> None:
    assert rows(on_host(*operators_beside(6), steps=6, until=6 * STEP - 1)) == []


def test_without_a_profiler_nothing_is_said() -> None:
    assert rows(rank(steps=[step(0, 0, STEP)], calls=[call(1, 10, ran=(20, 30))])) == []


def test_what_else_runs_between_them_does_not_change_their_places() -> None:
    def mixed(k: int) -> list[Piece]:
        """The relu is the second in every other step, and the third in the rest."""
        gemm, relu = ((10, 50), 1) if k % 2 else ((12, 60), 2)
        made = kernels(k, k % 2 == 0, gemm)
        at = k * STEP + 300 + 100 * relu - 30
        launch = k * STEP + 10 + relu - 1, k * STEP + 10 + relu
        return [*made, Piece(at, at + 5, launch, name="relu")]

    pieces = [piece for k in range(6) for piece in mixed(k)]
    (gemm,) = [row for row in rows(gpu(*pieces, steps=6)) if row.name == "gemm"]
    assert (gemm.alone, gemm.beside, gemm.tax_ns) == (6, 6, 3 * 2 + 3 * 10)
