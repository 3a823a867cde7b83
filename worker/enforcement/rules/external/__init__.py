"""Rules that run programs or ask models (``worker.enforcement.external``)."""
