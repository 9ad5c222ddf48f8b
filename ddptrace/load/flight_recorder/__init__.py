"""What torch's Flight Recorder dumped of each rank: the last collectives, as far as torch had come with them.

In: a folder of dumps, pickles or JSON. Out: a `JobState`.
"""
