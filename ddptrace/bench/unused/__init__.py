"""`ddptrace bench unused`; begin with experiment.py."""
