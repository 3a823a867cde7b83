"""The loops and threads of a worker process, and how long they take for what must be quick."""
