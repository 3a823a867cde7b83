"""What users read, in German and English."""
