"""The HTTP side of serving: protocols, the application, its documents."""
