"""`ddptrace bench blame`; begin with experiment.py."""
