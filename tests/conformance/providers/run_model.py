"""Loads models one after the other with the stores of one phase and runs shapes, on the Python of the tests' stand-in.

    python run_model.py < JOB

JOB is a JSON object: "root" of the stores, "phase", and "models", pairs of a folder and its shapes. Prints a JSON line
when a model is loaded (or why it is not), and one for each shape: the dims of its outputs, what it added to every
store, what the frameworks missed in this process, where its time went; or its error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from handlers.engines.engine import example, open_engine
from handlers.errors import ModelError
from handlers.shapes import Shape
from handlers.spec import load_spec
from warmup.stores.registry import settings_for, stores_for
from warmup.stores.store import Phase, Store, added_entries


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def look(stores: tuple[Store, ...], root: Path) -> dict[str, dict[str, str]]:
    return {store.name: store.entries(root / store.name) for store in stores}


def run(folder: Path, root: Path, phase: Phase, shapes: list[str]) -> None:
    spec = load_spec(folder)
    stores = stores_for([spec])
    settings = settings_for(stores, phase, root)
    os.environ.update(settings.environment)  # MIOpen is loaded later, and reads it then
    engine = open_engine(spec, folder, settings.engine)
    try:
        engine.load()
    except ModelError as error:
        say(error=str(error))
        return
    say(provider=getattr(engine, "provider", ""), stores=[store.name for store in stores])
    for shape in map(Shape.parse, shapes):
        before = look(stores, root)
        try:
            engine.warm(shape)
            outputs = engine.run(example(shape))
        except Exception as error:  # whatever the provider raises is the answer
            say(shape=shape.text, error=f"{type(error).__name__}: {error}")
            continue
        added = {name: added_entries(before[name], found) for name, found in look(stores, root).items()}
        times = getattr(engine, "times", None)
        say(
            shape=shape.text,
            process=os.getpid(),
            outputs={name: list(array.shape) for name, array in outputs.items()},
            added={name: keys for name, keys in added.items() if keys},
            misses={f"{store.name}.{key}": count for store in stores for key, count in store.misses().items()},
            times=[times.copy_in, times.execute, times.copy_out] if times else None,
        )
    engine.close()


job = json.load(sys.stdin)
for model, texts in job["models"]:
    run(Path(model), Path(job["root"]), Phase(job["phase"]), texts)
