"""Store series that grow: samples of live sources, kept in parts and published as traces."""
