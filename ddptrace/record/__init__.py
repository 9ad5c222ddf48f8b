"""Writes records to the run directory, crash-safe, and reads them back into arrays."""

from ddptrace.record.reader import RecordReader, Records
from ddptrace.record.recorder import Recorder

__all__ = ["RecordReader", "Recorder", "Records"]
