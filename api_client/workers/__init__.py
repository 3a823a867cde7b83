"""Which workers are there, which work waits for them, and the faults."""
