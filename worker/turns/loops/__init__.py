"""The event loops and threads of a worker process, whose main thread belongs to Celery."""
