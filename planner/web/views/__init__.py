"""Pages: fetch, check, early return, save, respond."""
