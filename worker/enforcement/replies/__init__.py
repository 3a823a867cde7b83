"""Agents' replies to feedback: separate the requested parts from talk about them."""
