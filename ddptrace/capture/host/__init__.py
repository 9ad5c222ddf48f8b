"""What else the host does while a rank trains: processors, network links, garbage collection, standstill.

In: Linux's /proc, Python's garbage collector, the steps. Out: HOST, GC, LINK, CGROUP and PULSE records.
"""
