"""`ddptrace bench load`; begin with experiment.py."""
