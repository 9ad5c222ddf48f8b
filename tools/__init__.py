"""What the project needs for itself, and no user of ddptrace does."""
