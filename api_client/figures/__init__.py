"""Statistics about turns, from the counters in the store."""
