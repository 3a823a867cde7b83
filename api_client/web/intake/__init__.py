"""The way from a request to a turn."""
