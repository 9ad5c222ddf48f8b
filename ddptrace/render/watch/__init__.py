"""A run that goes on, as a screen that is drawn again and again.

In: a `View` of the last steps. Out: lines of any width, and the terminal in which they stand.
"""
