"""Cases are read once; what was learnt is kept until a file changes."""

import json
import os

import pytest

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.checks import cache_folder, scan


@pytest.fixture
def cases(tmp_path, monkeypatch):
    monkeypatch.setenv("LIGHTNING_CALIB_CACHE", str(tmp_path / "cache"))
    found = []
    for name in "abc":
        (tmp_path / f"{name}.png").write_text(name)
        found.append(Case(name, (tmp_path / f"{name}.png",)))
    return found


class Inspector:
    def __init__(self):
        self.read = []

    def __call__(self, case):
        self.read.append(case.case_id)
        text = case.images[0].read_text()
        if "bad" in text:
            raise OSError("cannot identify")
        return {"text": text}


def look(cases, recipe="r"):
    inspector = Inspector()
    facts, problems = scan(cases, inspector, recipe)
    return facts, problems, sorted(inspector.read)


def test_nothing_is_read_twice(cases):
    facts, problems, read = look(cases)
    assert facts == {name: {"text": name} for name in "abc"}
    assert problems == []
    assert read == ["a", "b", "c"]
    assert look(cases) == (facts, [], [])


def test_a_changed_file_is_read_again(cases):
    look(cases)
    cases[1].images[0].write_text("other")
    facts, _, read = look(cases)
    assert read == ["b"]
    assert facts["b"] == {"text": "other"}
    os.utime(cases[2].images[0], ns=(1, 1))
    assert look(cases)[2] == ["c"]


def test_other_options_read_again(cases):
    look(cases)
    assert look(cases, "other")[2] == ["a", "b", "c"]


def test_a_broken_case_is_named_every_time_and_never_kept(cases):
    cases[0].images[0].write_text("bad")
    for expected in (["a", "b", "c"], ["a"]):
        facts, problems, read = look(cases)
        assert read == expected
        assert sorted(facts) == ["b", "c"]
        assert problems == [f"a ({cases[0].images[0]}): cannot identify"]


def test_a_spoilt_cache_is_no_harm(cases):
    look(cases)
    for path in cache_folder().rglob("*.json"):
        path.write_text("{")
    assert look(cases)[2] == ["a", "b", "c"]
    assert look(cases)[2] == []
    assert all(json.loads(path.read_text()) for path in cache_folder().rglob("*.json"))


def test_a_cache_that_cannot_be_written_is_no_harm(cases, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LIGHTNING_CALIB_CACHE", str(tmp_path / "file"))
    assert look(cases)[2] == ["a", "b", "c"]
    assert look(cases)[2] == ["a", "b", "c"]
