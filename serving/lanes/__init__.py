"""Where requests wait and run: the warm set, the choice of batches, and the thread that owns an engine."""
