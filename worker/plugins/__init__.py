"""Optional parts: each is found by its entry point in pyproject.toml, and nothing imports one."""
