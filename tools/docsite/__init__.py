"""Pages of the documentation site that are made from the code. `mkdocs.yml` names `hooks.py`, which MkDocs calls."""
