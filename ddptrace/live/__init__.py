"""A run while it grows: each rank's new steps as tables, once they are complete. Knows nothing of who wants them."""
