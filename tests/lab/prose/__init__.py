"""The lint of the project's English: ``python -m tests.lab.prose``, a part of ``make lint``."""
