"""Device timing without a profiler: events on the streams of a device, read once they are over.

In: begins and ends of phases, and collectives of device tensors. Out: DEVICE_CLOCK, DEVICE_MARK, DEVICE_CALL and
DEVICE_WAIT records.

Nothing here waits for the device on a thread of the program. The recorder's thread asks now and then which events are
over (`query`), and writes their times.
"""
