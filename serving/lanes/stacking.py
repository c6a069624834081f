"""Joining requests into one execution, and cutting its outputs apart again."""

from __future__ import annotations

import numpy as np

from handlers.handler import Handler, Tensors
from handlers.shapes import Shape
from handlers.spec import ModelSpec
from serving.lanes.job import Job


def stack(spec: ModelSpec, handler: Handler, shape: Shape, jobs: list[Job]) -> Tensors:
    """The inputs of one execution of ``shape``: the jobs' rows one below the other, padded at the end of each axis.

    A single job that already has the shape is passed on without a copy.
    """
    if len(jobs) == 1 and jobs[0].dims == shape.dims:
        return jobs[0].inputs
    if spec.batched and _fills(shape, jobs):
        return {tensor.name: np.concatenate([job.inputs[tensor.name] for job in jobs]) for tensor in shape}
    stacked: Tensors = {}
    for tensor in shape:
        whole = np.full(tensor.dims, handler.pad_value(tensor.name), dtype=tensor.numpy_dtype)
        row = 0
        for job in jobs:
            array = job.inputs[tensor.name]
            place = tuple(slice(0, size) for size in array.shape)
            if spec.batched:
                place = (slice(row, row + job.rows), *place[1:])
            whole[place] = array
            row += job.rows
        stacked[tensor.name] = whole
    _note_padding(shape, jobs)
    return stacked


def parts(spec: ModelSpec, shape: Shape, jobs: list[Job]) -> list[Tensors] | None:
    """The jobs' inputs as they lie, where their rows, one below the other, begin ``shape``; None where one of them has
    to be padded along another axis, or is the whole of it."""
    if not spec.batched or jobs[0].dims == shape.dims:
        return None
    tails = tuple(dims[1:] for dims in shape.dims)
    if any(tuple(dims[1:] for dims in job.dims) != tails for job in jobs):
        return None
    _note_padding(shape, jobs)
    return [job.inputs for job in jobs]


def _note_padding(shape: Shape, jobs: list[Job]) -> None:
    """Each job's share of the elements that are added."""
    useful = [sum(array.size for array in job.inputs.values()) for job in jobs]
    total = sum(useful)
    for job, mine in zip(jobs, useful, strict=True):
        job.padding = (shape.elements - total) * mine // total


def _fills(shape: Shape, jobs: list[Job]) -> bool:
    """Whether the jobs' rows make up the whole of ``shape``, with nothing to pad."""
    tails = tuple(dims[1:] for dims in shape.dims)
    return sum(job.rows for job in jobs) == shape.dims[0][0] and all(
        tuple(dims[1:] for dims in job.dims) == tails for job in jobs
    )


def unstack(
    spec: ModelSpec, handler: Handler, outputs: Tensors, shape: Shape, jobs: list[Job]
) -> list[tuple[Job, Tensors]]:
    """Each job's own part of the outputs of one execution of ``shape``."""
    ran = shape.dims
    if len(jobs) == 1 and jobs[0].dims == ran:
        return [(jobs[0], outputs)]
    parts = []
    row = 0
    skip = 1 if spec.batched else 0
    for job in jobs:
        part = outputs
        if spec.batched:
            part = {name: array[row : row + job.rows] for name, array in outputs.items()}
            row += job.rows
        if any(mine[skip:] != whole[skip:] for mine, whole in zip(job.dims, ran, strict=True)):
            asked = Shape.of(job.inputs, {tensor.name: tensor.dtype for tensor in spec.inputs})
            part = handler.crop(part, asked, shape)
        parts.append((job, part))
    return parts
