"""Commands that run an installation or a part of it."""
