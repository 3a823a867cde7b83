"""The worker: run agents, validate their answers, retry, and finish each turn once."""
