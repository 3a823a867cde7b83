"""The resources that operators list on the command line, in the API and on web pages, one module for each."""
