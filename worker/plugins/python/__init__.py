"""Your own Python agent as a turn: a function that is called in its own process."""
