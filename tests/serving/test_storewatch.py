"""The process that watches the stores of a server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from serving.beside import ProcessEnded
from serving.storewatch import StoreWatcher
from warmup.stores.watch import Look


def put(path: Path, data: bytes = b"data") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_what_appears_is_new_unless_it_was_put_there_on_purpose(tmp_path: Path) -> None:
    async def main() -> None:
        watcher = StoreWatcher(["inductor", "onnxruntime"], tmp_path)
        put(tmp_path / "inductor" / "ab" / "old.so")
        assert await watcher.look() == {"inductor": Look(1, ()), "onnxruntime": Look(0, ())}
        put(tmp_path / "inductor" / "cd" / "new.so")
        put(tmp_path / "inductor" / "cd" / "wanted.so")
        await watcher.accept({"inductor": {"cd/wanted.so": "3a6eb0790f39ac87c94f3856b2dd2c5d"}})
        assert (await watcher.look())["inductor"] == Look(3, ("cd/new.so",))
        assert (await watcher.look())["inductor"] == Look(3, ())
        await watcher.close()
        await watcher.close()

    asyncio.run(main())


def test_a_process_that_was_killed_is_told_of_and_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        watcher = StoreWatcher(["inductor"], tmp_path)
        await watcher.look()
        process = watcher._process._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ProcessEnded, match="has ended"):
            await watcher.look()
        put(tmp_path / "inductor" / "ab" / "one.so")
        assert await watcher.look() == {"inductor": Look(1, ())}
        await watcher.close()

    asyncio.run(main())


def test_a_look_that_fails_is_no_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        watcher = StoreWatcher(["tunableop"], tmp_path)
        await watcher.look()
        table = tmp_path / "tunableop" / "torch" / "results0.csv"
        table.mkdir(parents=True)  # which no library makes, and no one can read
        assert await watcher.look() == {}
        assert "IsADirectoryError" in capfd.readouterr().err
        table.rmdir()
        assert await watcher.look() == {"tunableop": Look(0, ())}
        await watcher.close()

    asyncio.run(main())


def test_two_questions_wait_for_each_other(tmp_path: Path) -> None:
    async def main() -> None:
        watcher = StoreWatcher(["inductor"], tmp_path)
        looks = await asyncio.gather(watcher.look(), watcher.look(), watcher.accept({}), watcher.look())
        assert looks == [{"inductor": Look(0, ())}] * 2 + [None, {"inductor": Look(0, ())}]
        await watcher.close()

    asyncio.run(main())
