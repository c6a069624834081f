"""A process beside a server that takes as many seconds for an answer as it is asked for: see ``test_beside``."""

from __future__ import annotations

import time

from serving.beside import serve


def answer(line: str) -> object:
    time.sleep(float(line))
    return {"seconds": line}


if __name__ == "__main__":
    serve(answer)
