"""`ddptrace bench buckets`; begin with experiment.py."""
