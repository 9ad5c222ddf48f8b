"""Kineto files that are as small as the steps that somebody wants to show.

In: files of torch.profiler, and steps. Out: files of the same layout that hold what these steps need, and no more.

trim      all ranks of a folder, by the step numbers of a run's records
shorter   what the steps of a rank need, as instants, and one file, shortened event by event
"""
