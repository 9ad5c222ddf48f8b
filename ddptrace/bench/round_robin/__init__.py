"""`ddptrace bench round-robin`; begin with experiment.py."""
