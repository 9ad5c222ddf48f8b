"""`ddptrace bench collectives`; begin with experiment.py."""
