"""Pipelines, drawn and said."""
