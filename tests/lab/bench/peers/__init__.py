"""The same turn on other queues, each as its manual writes it. Runs in an environment of its own (requirements.txt)."""
