"""Reading a Prometheus: which of an engine's metrics are there, asked piece by piece, as samples
per bin. Knows HTTP and PromQL, not Django."""
