"""Words for users, in German and English."""
