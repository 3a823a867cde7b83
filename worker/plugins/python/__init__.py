"""The user's own Python function as an agent, called in its own process."""
