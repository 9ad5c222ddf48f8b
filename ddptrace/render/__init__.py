"""From tables to something a person looks at: a trace for Perfetto, a report, a summary for the terminal."""
