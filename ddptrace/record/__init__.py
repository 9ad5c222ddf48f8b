"""From memory to the run directory, crash-safe, and back to arrays."""

from ddptrace.record.reader import RecordReader, Records
from ddptrace.record.recorder import Recorder

__all__ = ["RecordReader", "Recorder", "Records"]
