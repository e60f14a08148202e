"""Writes: every change of a row goes through here, from browser, API, command line and worker."""
