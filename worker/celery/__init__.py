"""The Celery binding: transport, pool, requests and tasks, as subclasses of Celery's and kombu's classes."""
