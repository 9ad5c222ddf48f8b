"""`ddptrace bench no-sync`; begin with experiment.py."""
