"""Pure transitions: each function takes a turn and an event, and returns the next change of the turn."""
