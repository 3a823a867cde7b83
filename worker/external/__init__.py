"""Programs and models for validation rules."""
