"""What only Open WebUI sends or shows."""
