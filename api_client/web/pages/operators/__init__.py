"""Pages for operators alone: one module for each; the application finds their routers here."""
