"""What we take from others (``make audit``, ``make licences``) and what we give away (``make release``)."""
