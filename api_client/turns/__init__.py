"""One turn: submit it, read it, follow it, cancel it, decide on it."""
