"""What runs a model: shapes, its description, engines, pre- and postprocessing. Imports nothing else of ours."""

import os

# ONNX Runtime reports its use to its maker unless it is told otherwise before it is imported (its Privacy.md). A server
# talks to nobody of its own accord; a value that is set already stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
