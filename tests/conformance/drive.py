"""Asks the real library for convolutions exactly as a caller would; run by the tests on the stand-in's Python.

Standard input: ``{"problems": [fields of ConvProblem...], "strides": null or one triple for each}``. Standard output:
one JSON line per problem with what Find and immediate mode answered, or the error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from warmup.miopen.library import Library, MIOpenError
from warmup.miopen.problem import ConvProblem


def problem(fields: dict[str, Any]) -> ConvProblem:
    hashable: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return ConvProblem(**hashable)


def main() -> None:
    calls = json.load(sys.stdin)
    strides = calls["strides"] or [None] * len(calls["problems"])
    with Library().handle() as handle:
        for fields, of in zip(calls["problems"], strides, strict=True):
            try:
                with handle.convolution(problem(fields), of) as convolution:
                    found = convolution.find()
                    convolution.run(found[0])
                    solutions = convolution.solutions()
                    convolution.run_solution(solutions[0])
                    answer = {"found": [[item.name, item.milliseconds, item.workspace] for item in found]}
                    answer |= {"solutions": len(solutions), "workspace": convolution.workspace()}
            except MIOpenError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)


main()
