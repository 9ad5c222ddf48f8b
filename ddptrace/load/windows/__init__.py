"""What a profiler window adds to a rank's records: when calls ran, and when the rank computed.

In: Kineto files as columns, and the calls recorded meanwhile. Out: `Window`, with the device's work or the CPU's
operators.
"""
