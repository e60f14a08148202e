"""The REST API: parses a request, calls the service that browser and command line call, renders."""
