"""Commands about the resources that operators list (``api_client/resources``)."""
