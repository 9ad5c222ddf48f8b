"""Makes spans: one tree for each step of each rank.

In: a rank's rows (`../rows.py`). Out: spans in the user's `TracerProvider` (`exporter.py`, in the process that trains),
or the SDK's finished spans in memory (`maker.py`), for `delivery` to send.

`trees.py` builds the trees, `attributes.py` declares what each span carries, `emitter.py` makes the spans and gives
them derived ids.
"""
