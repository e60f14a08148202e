"""Reads: what pages, API and command line show."""
