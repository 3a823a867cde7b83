"""The caller, and the rights of each."""
