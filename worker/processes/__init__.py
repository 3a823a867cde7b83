"""The processes of an installation, which a supervisor starts and stops, and the embedded broker."""
