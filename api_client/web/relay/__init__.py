"""The state of a running relay, and what its routes share."""
