"""What the server counts and measures, in Prometheus' terms."""
