"""Change rows: browser, API, command line and worker write through these modules only."""
