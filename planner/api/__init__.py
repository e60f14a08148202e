"""Serve the REST API: parse a request, call the same services as the pages, render the answer."""
