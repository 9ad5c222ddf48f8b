"""Kineto files that are as small as the steps that somebody wants to show.

In: files of torch.profiler, and steps. Out: files of the same layout that hold what these steps need, and no more.

cut       what the steps of a rank need, as instants      trim      all ranks of a folder
shorter   one file, shortened event by event              recorded  the numbers of a run's steps
"""
