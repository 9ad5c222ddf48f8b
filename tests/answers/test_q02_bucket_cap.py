"""Why does DDP not honour my bucket cap?"""

from __future__ import annotations

import re

from tests.answers.conftest import Ask


def test_parameters_larger_than_the_cap_are_named_with_the_cap_and_what_would_help(ask: Ask) -> None:
    said = ask("cap of 0.1").said("bucket-over-cap")
    assert re.search(r"Parameter layers\.\d\.weight alone has 262 kB and exceeds the cap of a bucket", said)
    assert "(bucket_cap_mb=0.1, 105 kB), as do 3 more parameters." in said
    assert "only splitting the parameter does. Most of the 5 buckets hold such a parameter: raise bucket_cap_mb" in said


def test_the_gradient_that_fills_a_bucket_is_named_with_the_cap_that_would_not_be_exceeded(ask: Ask) -> None:
    """Two weights of 262,144 bytes and their biases, since one weight is below the cap."""
    said = ask("cap of 0.3").said("bucket-over-cap")
    assert re.search(r"Bucket \d has 526 kB, 1\.7 times its cap \(bucket_cap_mb=0\.3, 315 kB\)", said)
    assert re.search(r"here layers\.\d\.weight adds 262 kB to 264 kB", said)
    assert said.endswith("With bucket_cap_mb=0.0499 no bucket exceeds 315 kB.")


def test_with_the_advised_cap_no_bucket_is_larger_than_was_asked_for(ask: Ask) -> None:
    assert max(row.nbytes or 0 for row in ask("cap of 0.0499").result.buckets if row.layout) <= 314_572


def test_of_a_cap_that_is_honoured_nothing_is_said(ask: Ask) -> None:
    assert ask("accumulated").said("bucket-over-cap") == ""


def test_the_first_layout_and_the_one_it_was_rebuilt_to_are_told_with_their_sizes(ask: Ask) -> None:
    said = ask("cap of 0.3").said("layout-rebuilt")
    assert "1 bucket of 1.06 MB, then 3 of 9.22 kB to 526 kB (the last layout from backward 1 on)" in said
