"""What is said of traffic: in few columns, with the doubt beside the number, and no name taken for markup."""

from __future__ import annotations

from dataclasses import replace

from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import RpcDigest
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.traffic import TrafficRow
from ddptrace.analysis.traffic.digest import KindDigest, RankTraffic, TrafficReport
from ddptrace.analysis.traffic.gradients import GradientDigest
from ddptrace.analysis.traffic.peers import LinkDigest, MessageDigest, RootDigest
from ddptrace.findings import Finding
from ddptrace.render.report import page
from ddptrace.render.traffic.pages import group_words, rpc_cells, traffic_text
from ddptrace.render.traffic.words import rank_words, varying_words, why_words
from tests.made import empty_result, make_result

KIND = KindDigest(
    "all_reduce", "0", 2, "gradients", "float32", 2, 6, 1_580_000, 0, 1_580_000, 1_580_000, 1_580_000, 3_160_000
)
REDUCER = GradientDigest(
    0, "DistributedDataParallel of Net", 10, 9640, 3, 1, 9640, 9640, 1.0, ("float32",), (), ("float32",)
)
PAIR = RpcDigest("worker0", "worker1", "rpc_sync", 5, 1, 65_800, 640, 640, 65_536, False, 132_616, 132_616)
LINK = LinkDigest("0", (0, 1), ("node0",), 3_160_000, 1_580_000, 1_580_000, 0, 0, False)
MESSAGE = MessageDigest(0, 3, 4, 32_768, 32_768, None)
ROOT = RootDigest("broadcast", "0", 3, 4, 2, 1368)
RANKS = (RankTraffic(0, "node0", 1_580_000, 0, 1_580_000), RankTraffic(1, "node0", 1_580_000, 0, 1_580_000))
REPORT = TrafficReport(
    "step", (1, 2, 3, 4, 5), 10, (KIND,), (), RANKS, (), (LINK,), (MESSAGE,), (ROOT,), (REDUCER,), (PAIR,), ()
)


def lines_of(report: TrafficReport) -> list[str]:
    text = traffic_text(make_result(), report)
    assert max(map(len, text.splitlines())) <= 96
    return [" ".join(line.split()) for line in text.splitlines()]


def test_every_part_has_its_line() -> None:
    lines = lines_of(REPORT)
    assert lines[0].startswith("ddptrace traffic · run 5f1e5f1e · 2 ranks")
    assert "Collectives per rank and step (mean of 10 rank-steps after step 0)" in lines
    assert "all_reduce 0 gradients float32 6 1.58 MB - 1.58 MB" in lines
    assert "Every rank sends 1.58 MB per step, all 2 together 3.16 MB." in lines
    assert "0 DistributedDataParallel of Net 9.64 kB 3 1 9.64 kB 9.64 kB 100 %" in lines
    assert "0 2 ranks on node0 3.16 MB 0 → 1 1.58 MB · 1 → 0 1.58 MB" in lines
    assert "0 → 3 4 32.8 kB -" in lines
    assert "broadcast 0 from rank 3 2 1.37 kB" in lines
    assert "worker0 → worker1 rpc_sync 5 1 65.8 kB 640 B 640 B 65.5 kB" in lines
    assert not any("Not the same" in line or "Findings" in line for line in lines)


def test_long_names_do_not_make_long_lines() -> None:
    name = "x" * 200
    report = replace(
        REPORT,
        kinds=(replace(KIND, op=name, group=name, origin=name, dtype=name),) * 20,
        once=(KIND,),
        links=(replace(LINK, group=name, hosts=(name,)), replace(LINK, ranks=(0, 1, 2), message_nbytes=1)) * 10,
        messages=(replace(MESSAGE, source=100_000, destination=100_001),) * 20,
        roots=(replace(ROOT, op=name, group=name, root=100_000),) * 20,
        gradients=(replace(REDUCER, name=name, hooks=(name,), sent_ratio=0.5),) * 20,
        rpcs=(replace(PAIR, caller=name, callee=name, op=name, gradient_inferred=True, nbytes_min=0),) * 20,
        findings=(Finding("synchronised-often", "warning", "reducer 0", "word " * 60),),
    )
    lines = lines_of(report)
    assert "Collectives per rank and step (12 of 20 kinds; mean of 10 rank-steps after step 0)" in lines
    assert any(line.startswith("Once, per rank") for line in lines)
    titles = "; the 12 largest of 20)", "sent by all ranks together, the 8 largest of 20)"
    assert all(any(line.endswith(title) for line in lines) for title in titles)
    assert sum(line.startswith("100000 → 100001") for line in lines) == 12
    assert sum("to rank 100000" in line for line in lines) == 8


def test_of_a_long_name_both_ends_are_shown() -> None:
    name = "BucketedDataParallel of TransformerLanguageModel"
    kind = replace(KIND, op="all_gather_into_tensor_coalesced")
    long = replace(
        REPORT,
        gradients=(replace(REDUCER, name=name),),
        kinds=(kind,),
        links=(replace(LINK, hosts=("node0012.cluster.example.org",)),),
    )
    lines = lines_of(long)
    assert any(line.startswith("0 BucketedDataParalle…") and "anguageModel 9.64 kB" in line for line in lines)
    assert any(line.startswith("all_gather_in") and "oalesced 0 gradients" in line for line in lines)
    assert any("on node0012" in line for line in lines)


def test_one_step_of_one_rank_is_one_rank_step() -> None:
    assert "Collectives per rank and step (mean of 1 rank-step after step 0)" in lines_of(replace(REPORT, rank_steps=1))


def test_of_a_larger_group_it_is_said_what_of_it_goes_from_whom_to_whom() -> None:
    larger = replace(LINK, ranks=(0, 1, 2), there_nbytes=None, back_nbytes=None)
    assert group_words(larger) == "who sends to whom is up to the backend"
    assert group_words(replace(larger, message_nbytes=160_000)) == "160 kB by sends, the rest up to the backend"
    assert group_words(replace(larger, message_nbytes=3_160_000)) == "3.16 MB by sends"
    assert group_words(replace(larger, message_nbytes=10, peers_unknown=True)) == "send and recv: peer not recorded"


def test_remote_calls_that_vary_and_gradients_that_nobody_saw_are_told() -> None:
    lines = lines_of(replace(REPORT, rpcs=(replace(PAIR, nbytes_min=0, gradient_inferred=True, steps=0),)))
    assert "worker0 → worker1 rpc_sync all run 1 65.8 kB 640 B 640 B 65.5 kB" in lines
    assert "Not the same in every step: worker0 → worker1 rpc_sync 0 B – 133 kB." in lines
    assert "Some gradients were not seen when they left: their size is that of the arguments." in lines


def test_ranks_without_steps_are_named_as_missing() -> None:
    later = replace(REPORT, uncounted=(2, 3))
    assert "Without ranks 2 and 3, where no whole step after step 0 was found." in lines_of(later)
    first = replace(later, steps=(0,), rank_steps=2)
    assert "Without ranks 2 and 3, where no whole step was found." in lines_of(first)


def test_the_report_says_which_remote_calls_are_summed_over_the_whole_run() -> None:
    assert rpc_cells(PAIR)[3:5] == ["5", "1"] and rpc_cells(PAIR)[-1] == "133 kB"
    assert rpc_cells(replace(PAIR, steps=0))[3:5] == ["all run", "1"]
    assert rpc_cells(replace(PAIR, steps=0))[-1] == "-"  # the sum is not that of one step


def test_a_run_that_sent_nothing_says_so() -> None:
    empty = replace(
        REPORT, per="rank", steps=(), rank_steps=0, kinds=(), links=(), gradients=(), rpcs=(), messages=(), roots=()
    )
    assert "No collective and no remote call was recorded in these steps." in traffic_text(empty_result(), empty)


def test_ranks_that_send_unlike_amounts_are_named() -> None:
    uneven = replace(REPORT, ranks=(*RANKS, RankTraffic(2, "node1", 0, 0, 4_000_000)))
    assert rank_words(uneven) == (
        "Rank 2 sends most, 4.00 MB per step, and rank 0 least, 1.58 MB; all 3 together 7.16 MB."
    )


def test_what_varies_over_the_steps_is_told_with_its_bounds() -> None:
    assert varying_words([KIND]) == ""
    said = varying_words([replace(KIND, origin="program", nbytes_min=0)])
    assert said == "Not the same in every step and on every rank: all_reduce (program, group 0) 0 B – 1.58 MB."


def test_where_gloo_sends_more_than_is_computed_it_is_said() -> None:
    assert not any("Gloo" in line for line in lines_of(REPORT))
    assert "twice as much for a reduce-scatter" in " ".join(lines_of(replace(REPORT, reduces_on_host=True)))


def test_why_other_bytes_were_seen_than_expected() -> None:
    assert why_words(REDUCER) == ""
    halved = replace(REDUCER, nbytes=4820, sent_ratio=0.5, hooks=("fp16_compress_hook",), dtypes=("float16",))
    assert (
        why_words(halved) == "Reducer 0 sent 50 % of its gradients' bytes: the hook fp16_compress_hook sends float16."
    )
    assert "were not seen" in why_words(replace(halved, nbytes=None, sent_ratio=None))
    assert "sent nothing" in why_words(replace(REDUCER, nbytes=0, sent_ratio=None))
    assert "not all of its buckets" in why_words(replace(REDUCER, sent_ratio=0.4))


def test_bytes_that_went_as_another_type_are_not_called_missing_where_no_hook_was_seen() -> None:
    unseen = replace(REDUCER, nbytes=4820, sent_ratio=0.5, dtypes=("float16",))
    assert why_words(unseen) == "Reducer 0 sent 50 % of its gradients' bytes, as float16."


def with_traffic(result: Result, op: str) -> Result:
    row = TrafficRow(0, 1, op, "0", 2, "gradients", "float32", 6, 9640, 0, 9640)
    sends = replace(row, op="send", peer=7, calls=3), replace(row, op="broadcast", group="<img src=y>", peer=1)
    return replace(result, traffic=Table(TrafficRow, [row, *sends]))


def test_the_report_has_a_section_of_traffic_and_takes_no_name_for_markup() -> None:
    text = page(with_traffic(make_result(), "<img src=x>"))
    assert "<h2>Traffic</h2>" in text and "9.64 kB" in text
    assert "&lt;img src=x&gt;" in text and "&lt;img src=y&gt;" in text and "<img" not in text
    assert '<td class="words">0 → 7</td>' in text and "from rank 1" in text
    assert "<h2>Traffic</h2>" not in page(make_result())
