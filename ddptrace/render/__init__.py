"""From tables to something a person looks at: a trace for Perfetto, a report, a summary for the terminal.

In: a `Result`, or what another room of analysis answers with. Out: text, HTML, figures as plain data, trace.json.gz.

Begin with `terminal.py`, `report.py` or `trace/chrome.py`. Subjects have their names from `ddptrace/analysis`. The room
of a subject has `terminal.py` for lines of text, `report.py` for sections, `figures.py` for pictures, `trace.py` for
tracks and `words.py` for what several of them say; a small subject is one file.

words, markup, figures   units and sentences, blocks of HTML, blocks of pictures: what all of them are built from
report_top, report_basis the report's first part, and what its numbers rest on
sheet, sheet_page        what a benchmark found, as Markdown and as a page
watch                    a run that goes on, as a screen that is drawn again and again
"""
