"""From a turn's events to what a chat client receives."""
