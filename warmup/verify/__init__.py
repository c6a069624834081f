"""Whether an engine computes what it should: the same inputs through two engines, and where their graphs part.

``reference`` is the plainest engine for a model, ``comparison`` holds the outputs of two against each other,
``bisection`` finds the first node at which two graphs differ, ``onnx`` cuts ONNX graphs open for it.
"""
