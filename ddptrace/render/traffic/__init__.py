"""How many bytes go over the wire, for the terminal and the report.

In: a `TrafficReport`. Out: what `ddptrace traffic` prints, and a section of the report.
"""
