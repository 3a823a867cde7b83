"""Stores notifications to outside systems until they are sent, and reports how many are waiting."""
