"""What a profiler window adds to a rank's records: when calls ran, and when the rank computed.

In: Kineto files as columns, and the calls recorded meanwhile. Out: `Window`, with the device's work or the CPU's
operators.

join            reads each file, and joins it to the calls recorded in it: begin here
device          what the device did, and which call launched it
comm_kernels    which kernels communicate, by their names
idle            what the host did while the device was idle
cpu_compute     when a rank's host computed, and in which operators
backend_ranges  which call each of Gloo's own ranges carried out
nesting         which range of a thread is around an instant
"""
