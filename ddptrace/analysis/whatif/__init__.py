"""What a step would take if it were set up otherwise, worked out from one recorded run. Pure arithmetic.

observed   one rank's steps: its own times, when each gradient was ready, what was sent when
model      all ranks together: compute without communication beside it, and what a collective costs (fit)
play       a step played with other buckets, another wire, other ranks
predict    a question answered, with an interval and what it rests on, or not at all
advise     the best plan among many, and what limits the step
"""
