"""What executes a model: one module per framework, all with the interface of ``engine.Engine``."""
