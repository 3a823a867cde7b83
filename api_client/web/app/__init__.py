"""The relay's application and its connections."""
