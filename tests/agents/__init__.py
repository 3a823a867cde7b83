"""Other agents than Claude, each as its real program against a stub of the service that it asks."""
