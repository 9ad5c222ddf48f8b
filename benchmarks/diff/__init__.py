"""`ddptrace bench diff`; begin with experiment.py."""
