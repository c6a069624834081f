"""Is this node able to serve: what it is, what spoils it, why that hurts and what to do. No framework is imported."""
