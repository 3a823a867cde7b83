"""Plain Celery under the same load and the same faults, for comparison."""
