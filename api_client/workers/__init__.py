"""Worker processes, the turns that wait for them, and their faults."""
