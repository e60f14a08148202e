"""Series that grow: what live sources say, kept by parts, and published as traces."""
