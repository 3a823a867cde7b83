"""Commands of the resources that operators list (``api_client/resources``)."""
