"""The runners and models of a worker."""
