"""``python -m serving``: the command ``preheat`` where its script is not on the path."""

from serving.cli import main

main()
