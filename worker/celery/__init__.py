"""The Celery binding: subclasses of the classes that Celery and kombu let applications replace."""
