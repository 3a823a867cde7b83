"""Optional parts, which are found by their entry points in pyproject.toml and imported by nothing else."""
