"""Grafana dashboards as code, what Perfetto starts with, and rules for Prometheus: README.md tells how to load them.

`python -m dashboards.build` writes the JSON that is loaded; a test holds it equal to what the code makes.
"""
