from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmup.miopen import scan as scanning
from warmup.miopen.records import inspect
from warmup.miopen.scan import ALGORITHM_NAMES, Names, chunks, scan

KEY = "64-56-56-3x3-64-56-56-16-1x1-1x1-1x1-0-NCHW-FP32-"
ALGORITHMS = ("miopenConvolutionFwdAlgoGEMM", "miopenConvolutionFwdAlgoDirect", "miopenConvolutionFwdAlgo", "", "GEMM")
NUMBERS = ("0", "1.5", "5.68561e-05", "245391", "", "abc", "nan", "inf", "-1", "+2", "1_0", " 1", "1e", "0x1", "9" * 20)


@st.composite
def items(draw: st.DrawFn) -> str:
    solver = draw(st.sampled_from(("GemmFwdRest", "ConvOclBwdWrW2<16>", "A", "", ALGORITHMS[0])))
    time, space = draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(NUMBERS))
    algorithm = draw(st.sampled_from(ALGORITHMS))
    modern, legacy = f"{solver}:{time},{space},{algorithm}", f"{algorithm}:{solver},{time},{space},{algorithm},not used"
    return draw(st.sampled_from((modern, modern, legacy, solver, f"{solver}:", f"{modern},", "")))


@st.composite
def lines(draw: st.DrawFn) -> str:
    key = draw(st.sampled_from((KEY + "F", "", "#", "1-2", KEY + "F\r")))
    body = ";".join(draw(st.lists(items(), max_size=3)))
    text = draw(st.sampled_from((f"{key}={body}", f"{key}={body}", key, "")))
    return draw(st.sampled_from(("", "", "", " ", "\0", "\xef\xbb\xbf"))) + text + draw(st.sampled_from(("", "", "\r")))


def _read(data: bytes):
    names = Names()
    return [scan(chunk, offset, names) for offset, chunk in chunks(data)], tuple(names)


@settings(max_examples=300)
@given(st.lists(lines(), max_size=6), st.booleans())
def test_the_fast_reading_agrees_with_the_slow_one(texts: list[str], newline: bool) -> None:
    data = ("\n".join(texts) + ("\n" if newline else "")).encode("latin-1")
    columns, names = _read(data)
    dirty = {span for chunk in columns for span in chunk.dirty}
    clean = {}
    for chunk in columns:
        at = 0
        for key, start, end, count in zip(chunk.keys, chunk.row_start, chunk.row_end, chunk.row_items, strict=True):
            values = [
                (names[chunk.solver[i]], chunk.time_ms[i], chunk.workspace[i], ALGORITHM_NAMES[chunk.algorithm[i]])
                for i in range(at, at + count)
            ]
            clean[int(start), int(end)] = (key, values)
            at += count
        assert at == len(chunk.solver)
    start = 0
    for text in data.decode("latin-1").split("\n"):
        span = (start, start + len(text))
        start = span[1] + 1
        if not text:
            assert span not in clean and span not in dirty
            continue
        assert (span in clean) != (span in dirty)
        line = inspect(text, "find")
        # The fast reading leaves the key to others; of everything else it is as strict.
        others = [fault for fault in line.faults if fault.code not in ("bad-key", "leading-junk")]
        if span in clean:
            key, values = clean[span]
            assert not others
            assert key == text.partition("=")[0]
            if line.records and not line.faults:
                found = [i.solution for i in line.records[0].items if i.solution]
                assert values == [(s.solver, s.time_ms, s.workspace, s.algorithm) for s in found]
        elif not line.faults:
            # Nothing sound is dirty but a whole number of more digits than the fast reading takes, and a solver in the
            # old form that is called like an algorithm: the first field does not tell which form it is.
            assert "9" * 20 in text or f"{ALGORITHMS[0]}:{ALGORITHMS[0]}," in text


def test_a_file_is_read_the_same_in_chunks_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    item = "GemmFwdRest:0.5,0,miopenConvolutionFwdAlgoGEMM"
    data = b"".join(f"{KEY}F_g{number}={item}\n".encode() for number in range(2, 60)) + b"broken"
    whole, _ = _read(data)
    monkeypatch.setattr(scanning, "CHUNK", 150)
    parts, _ = _read(data)
    assert len(parts) > 10
    assert [key for chunk in parts for key in chunk.keys] == [key for chunk in whole for key in chunk.keys]
    assert [int(s) for chunk in parts for s in chunk.row_start] == [int(s) for chunk in whole for s in chunk.row_start]
    assert [span for chunk in parts for span in chunk.dirty] == whole[0].dirty


def test_nothing_is_nothing() -> None:
    assert list(chunks(b"")) == []
    (columns,), names = _read(b"\n\n")
    assert (columns.keys, columns.dirty, names) == ([], [], ())
