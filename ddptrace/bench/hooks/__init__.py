"""`ddptrace bench hooks`; begin with experiment.py."""
