"""Windows of torch.profiler: our own, and those of a profiler that the program runs.

In: the schedule that the user asked for, and calls of torch.profiler. Out: WINDOW and PAUSE records, Kineto files in
the rank's folder.

windows       every window, from its begin to its file: begin here
profilers     profilers of torch: ours, and when each began and ended to record
kineto_files  how large a file will be, and its packed copy
occasions     opens windows when steps become slower, or when `ddptrace profile` asks
next_window   which steps the ranks agree on for such a window
"""
