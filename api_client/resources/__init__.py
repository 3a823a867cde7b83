"""The resources that operators list: one module for each, which command line, API and pages find here."""
