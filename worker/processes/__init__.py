"""The processes of an installation: who starts them, watches them and ends them; the embedded broker."""
