"""What changed between two sides of one run or several each. Begin with tables.py, then compare.py.

runs ─▶ figures.py: what is compared of each ─▶ compare.py ─▶ rotation.py: how surely ─▶ Diff
        settings.py: how each was set up ──────────┘
"""
