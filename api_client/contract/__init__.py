"""Types shared by the client and the worker, which meet only here."""
