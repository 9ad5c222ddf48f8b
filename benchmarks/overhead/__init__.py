"""`ddptrace bench overhead`; begin with experiment.py."""
