"""Worker side of helix-turns: run agents, validate their answers, retry, and finish each turn once."""
