"""What we take from others: known vulnerabilities (``make audit``) and licences (``make licences``)."""
