"""The binding to Celery: subclasses of the classes that Celery and kombu let applications replace."""
