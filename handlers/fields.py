"""Kinds of values in a model's description, and what all its parts are."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from handlers.shapes import dtype_name


def _short_dtype(name: str) -> str:
    return dtype_name(name)


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def _bytes(value: object) -> object:
    """Bytes of ``2.5GB`` or ``512 MiB``; anything else is left for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]+)", value.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ValueError("expected bytes, or a number with B, KB, MB, GB, KiB, MiB or GiB, such as 2.5GB")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def _number(value: object) -> object:
    """Refuses true and false, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


Dtype = Annotated[str, AfterValidator(_short_dtype)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Axis = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Size = Annotated[Whole, Field(ge=1, le=1 << 31)]
Weight = Annotated[Real, Field(gt=0, le=1e12)]
Space = Annotated[Whole, BeforeValidator(_bytes), Field(ge=1)]  # bytes


class Part(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True)
