"""What happens while training: which surfaces are watched, and what each puts into the records."""
