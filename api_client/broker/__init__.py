"""Announcing turns to Celery: by its own client, or by a message that the command of a submit pushes itself."""
