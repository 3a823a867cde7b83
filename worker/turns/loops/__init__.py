"""The loops and threads of a worker process. Its event loop has a separate thread: the main one is Celery's."""
