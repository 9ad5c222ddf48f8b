"""The experiments of `ddptrace bench`. NAME is `NAME.py`, which holds its `EXPERIMENT`; its parts are `NAME_*.py`."""
