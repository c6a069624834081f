"""On-disk caches that remove a first-call cost: one module per store, all with the interface of ``store.Store``."""
