"""Typed reading: what a file holds is what it should be, or one error says where it is not."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.kit.files import FileError, write_json
from lightning_calib.kit.typed import read_typed, typed


@dataclass(frozen=True)
class Inner:
    name: str
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Outer:
    number: int
    kind: Literal["a", "b"]
    size: tuple[int, int] | None = None
    inner: tuple[Inner, ...] = ()
    free: dict[str, list[int]] = field(default_factory=dict)


INNER = st.builds(Inner, st.text(), st.tuples(st.floats(allow_nan=False, allow_infinity=False)))
OUTER = st.builds(
    Outer,
    st.integers(),
    st.sampled_from(["a", "b"]),
    st.none() | st.tuples(st.integers(), st.integers()),
    st.tuples(INNER),
    st.dictionaries(st.text(), st.lists(st.integers())),
)


@given(OUTER)
def test_what_was_written_comes_back(value):
    assert typed(json.loads(json.dumps(asdict(value))), Outer) == value


WHOLE = {"number": 1, "kind": "a", "inner": [{"name": "x", "shares": [0.5]}]}
WRONG = {
    "number": ({"number": "1"}, "at number there is '1', not int"),
    "no whole number": ({"number": 1.5}, "at number there is 1.5, not int"),
    "truth": ({"number": True}, "at number there is True, not int"),
    "choice": ({"kind": "c"}, "at kind there is 'c'"),
    "length": ({"size": [1]}, r"at size there is \[1\]"),
    "below": ({"inner": [{"name": "x", "shares": ["y"]}]}, r"at inner\.0\.shares\.0 there is 'y', not float"),
    "text in place of a list": ({"inner": "abc"}, "at inner there is 'abc'"),
    "unknown": ({"more": 1}, "more is no part of a Outer"),
    "missing below": ({"inner": [{}]}, r"inner\.0\.name is missing"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_error_names_the_file_and_the_place(tmp_path, wrong):
    change, words = WRONG[wrong]
    write_json(tmp_path / "a.json", WHOLE | change)
    with pytest.raises(FileError, match=rf"a\.json: .*{words}.*; do it again"):
        read_typed(tmp_path / "a.json", Outer, "do it again")


def test_numbers_beyond_all_floats_are_refused(tmp_path):
    """JSON knows them; Python reads infinity, or a whole number of any length."""
    for text in ("1e999", "-1e999", "1" + "0" * 400):
        (tmp_path / "a.json").write_text(f'{{"name": "x", "shares": [{text}]}}')
        with pytest.raises(FileError, match=r"a\.json: at shares\.0 there is .*, not float"):
            read_typed(tmp_path / "a.json", Inner)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"number": NaN}', "\x00", '{"number": 1}{'])
def test_what_is_no_json_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FileError, match=r"a\.json is not JSON"):
        read_typed(tmp_path / "a.json", Outer)
    with pytest.raises(FileError, match=r"b\.json is missing"):
        read_typed(tmp_path / "b.json", Outer)
