"""Turn a turn's events into replies for chat clients."""
