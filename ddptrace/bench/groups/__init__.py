"""`ddptrace bench groups`; begin with experiment.py."""
