"""Reads agents' replies to feedback: finds the requested parts of an answer between remarks about them."""
