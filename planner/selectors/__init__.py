"""Read rows for pages, API and command line."""
