"""What runs a model: shapes, its description, engines, pre- and postprocessing. Imports nothing else of ours."""
