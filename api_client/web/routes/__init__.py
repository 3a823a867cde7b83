"""The routes of the relay."""
