"""Pages for operators, one module per page; the application collects the routers of this package."""
