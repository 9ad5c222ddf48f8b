"""`ddptrace bench ranks`; begin with experiment.py."""
