"""Reads what the tool gateway wrote about the tool calls of turns."""
