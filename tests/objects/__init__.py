"""Sessions' files in an object store: a real S3-compatible server, and hosts that share nothing else."""
