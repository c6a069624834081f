"""A YAML file as people write it, read strictly: whatever is wrong with it becomes one line with the file's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from handlers.errors import ModelError

LONGEST = 400  # characters of a message that quotes what a file says


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file.

    Raises ModelError where the file cannot be read, is not YAML or nested too deeply, has a key twice, a value that
    YAML cannot make (a month 99), or no mapping at the top.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split()).replace('in "<unicode string>", ', "in ")
        raise ModelError(f"{path}: not YAML: {shortened(told)}") from error
    except RecursionError as error:
        raise ModelError(f"{path}: nested too deeply") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path}: expected a mapping at the top, found {type(document).__name__}")
    return document


def shortened(text: str, longest: int = LONGEST) -> str:
    """A text of at most ``longest`` characters: of a longer one the beginning and the end."""
    if len(text) <= longest:
        return text
    return f"{text[: longest - 25]} ... {text[-20:]}"


def quoted(value: object, longest: int = 80) -> str:
    """A value as Python writes it, shortened; numbers of any size, which Python refuses to write, too."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"a whole number of {value.bit_length()} bits"
    return shortened(repr(value), longest)


class _Loader(yaml.SafeLoader):
    """A SafeLoader that says where a value is that it cannot make, and refuses a key that is there twice."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:  # of int(), or of a date that is none
            raise ConstructorError(None, None, str(error), node.start_mark) from error

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    said = f"the key {quoted(key.value)} is there twice"
                    raise ComposerError(None, None, said, key.start_mark)
                seen.add((key.tag, key.value))
        return node
