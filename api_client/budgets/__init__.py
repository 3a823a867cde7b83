"""What owners, keys and models may spend in a day, and what they have spent."""
