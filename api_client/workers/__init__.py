"""The worker processes, the work that waits for them, and their faults."""
