"""Answers to what-if questions, and advice.

In: a `WhatIf`, an `Advice` or a `Forecast`. Out: what `ddptrace whatif` and `ddptrace advise` print, and a section of
the report.
"""
