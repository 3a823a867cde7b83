"""Which workers are there, which work waits for them, and what is wrong."""
