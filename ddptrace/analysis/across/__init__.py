"""What no rank can tell alone: who waited for whom, on one time line, and why.

desync        the same calls on all ranks, or where they part
clocks        how far the ranks' clocks lie apart, and how sure that is; `aligned` moves what lies apart
arrivals      for each collective and rank: waiting, then transfer
replay        the run played again with one thing as on the other ranks: what that rank cost
suspects      who is named, and `causes` why
critical_path what the iteration really waited for
contention    what computing beside communication costs
jitter        what varies from step to step
"""
