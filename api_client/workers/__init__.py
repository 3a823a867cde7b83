"""Which workers are there, what waits for them, and what is wrong."""
