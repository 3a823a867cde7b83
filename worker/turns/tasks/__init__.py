"""The Celery side of a worker: registered tasks, their messages, their events."""
