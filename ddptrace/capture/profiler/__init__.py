"""Windows of torch.profiler: our own, and those of a profiler that the program runs.

In: the schedule that the user asked for, and calls of torch.profiler. Out: WINDOW and PAUSE records, Kineto files in
the rank's folder.
"""
