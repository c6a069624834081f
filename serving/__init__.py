"""The endpoint and the command line: HTTP, lanes, batching, the warm set, metrics. Imports handlers and warmup."""
