"""HTA (Holistic Trace Analysis) on the same files, and which of its rules make its numbers others than ours.

In: the path of a folder of traces and our `Result` of it. Out: an `HtaReport`.
"""
