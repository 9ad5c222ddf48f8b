"""From tables to something a person looks at: a trace for Perfetto, a report, a summary for the terminal.

In: a `Result`, or what another room of analysis answers with. Out: text, HTML, figures as plain data, trace.json.gz.

Begin with `terminal.py`, `report.py` or `trace/chrome.py`. Subjects have their names from `ddptrace/analysis`. Most are
one file, with the lines, sections, pictures and tracks of the subject. A large one is a room, with a file for its pages
in the terminal and the report, for its pictures (`..._figures.py`) and for its tracks (`..._tracks.py`).

words, markup, figure    units and sentences, blocks of HTML, blocks of pictures: what all of them are built from
report_top               what the report begins with, and what its numbers rest on
sheet, sheet_page        what a benchmark found, as Markdown and as a page
watch                    a run that goes on, as a screen that is drawn again and again
"""
