"""`ddptrace bench ddp`; begin with experiment.py."""
