"""Parse and validate request bodies."""
