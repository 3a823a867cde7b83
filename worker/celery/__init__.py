"""The binding to Celery, by subclasses of the classes that Celery and kombu let applications replace."""
