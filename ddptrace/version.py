"""The version of this package, for its own modules: importing `ddptrace` for it would close a circle.

The build reads the assignment by a pattern that knows no annotation.
"""

__version__ = "0.1.0"
