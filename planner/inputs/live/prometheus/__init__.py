"""Read engine metrics from a Prometheus server as samples per bin.

The package knows HTTP and PromQL, not Django.
"""
