"""Preheat's models inside TorchServe: a handler that is warm before its worker is ready, and archives for it.

Nothing here imports TorchServe except ``handler``, which runs inside a TorchServe worker.
"""
