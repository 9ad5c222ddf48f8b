"""`ddptrace bench scale`; begin with experiment.py."""
