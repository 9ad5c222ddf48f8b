"""The trace for Perfetto: tracks, slices, arrows and counters in Chrome's JSON.

In: a `Result`. Out: trace.json.gz. Tracks of one subject are in that subject's file, or in its room, in
`..._tracks.py`.
"""
