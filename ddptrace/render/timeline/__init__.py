"""Advice on runs whose buckets cannot be planned."""
