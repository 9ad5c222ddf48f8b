"""Writes records to the run directory, crash-safe, and reads them back into arrays.

In: records of one rank, from any thread. Out: `rank-<r>/records-*.bin`, and later arrays of what these files hold.

recorder      writes: packs each record into the file that is being filled
segment       is that file
store         makes the files ahead of training, and deletes or thins the oldest
thin          leaves the records in a file that describe the run, and counts those that it deletes
descriptions  texts by number, and records that describe the run
reader        reads whole files, whatever is damaged
tail          reads what a recorder has written since the last look
directory     decides who may write where in a run directory
"""

from ddptrace.record.reader import RecordReader, Records
from ddptrace.record.recorder import Recorder

__all__ = ["RecordReader", "Recorder", "Records"]
