"""Agents whose process lives from one message of a session to the next."""
