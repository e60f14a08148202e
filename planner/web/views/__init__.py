"""Provide the views of the pages: fetch, check, return early, save, respond."""
