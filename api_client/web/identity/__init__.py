"""Identifies the caller by the API key, and refuses other machines while there are no keys."""
