"""`make bench`: what our guarantees cost beside plain Celery, measured in one run. Nothing here is a timed test."""
