"""`python -m ddptrace.run`: a training program recorded as it stands, without a line of ddptrace in it."""
