"""Bringing spans and metrics to where they are wanted, from the process that reads a run: never from the one that
trains. Nothing is dropped here without being counted and said; what was not brought lies in the run directory."""
