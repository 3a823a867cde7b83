"""The lint of the project's English: ``python -m tests.prose``, a part of ``make lint``."""
