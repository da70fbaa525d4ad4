"""Files that appear whole, with the rights that new files get; what killed processes leave goes."""

import csv
import hashlib
import io
import os
import stat
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_calib.kit.checksums import is_file_of
from lightning_calib.kit.files import (
    FileError,
    atomic_path,
    csv_lines,
    csv_rows,
    locked,
    read_json,
    read_yaml,
    remove_leftovers,
    write_text,
)
from lightning_calib.kit.tensors import write_tensors


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_rights_of_the_umask(tmp_path, mask):
    """Also those of safetensors, which would leave them to their owner alone."""
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "a.safetensors", {"x": torch.zeros(1)})
        with atomic_path(tmp_path / "b.txt") as aside:
            aside.write_text("b")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_nothing_is_written_through_links(tmp_path):
    """Whoever made the folder may have put links where a file is made, in it or under its name."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").symlink_to(outside)
    with atomic_path(folder / "a.txt") as aside:
        name = aside.name
    (folder / name).symlink_to(outside)
    write_text(folder / "a.txt", "new")
    assert (folder / "a.txt").read_text() == "new"
    assert not (folder / "a.txt").is_symlink()
    (folder / ".lock").symlink_to(outside)
    with pytest.raises((OSError, FileError)), locked(folder, "the folder"):
        pass
    assert outside.read_text() == "mine"


def test_leftovers_of_processes_that_are_gone_go(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from lightning_calib.kit.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])): os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.json")], check=False)
    (left,) = tmp_path.iterdir()
    with atomic_path(tmp_path / "b.json") as mine:
        other = tmp_path / ".c.json.00000000-1.part"  # of another machine
        other.touch()
        remove_leftovers(tmp_path)
        assert not left.exists()
        assert mine.exists()
        assert other.exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: [", "- 1\n", "", "a: \0", "1", "a: &a [*a, *b]"])
@pytest.mark.parametrize(("read", "suffix"), [(read_json, "json"), (read_yaml, "yaml")])
def test_what_cannot_be_read_is_named(tmp_path, read, suffix, text):
    if (suffix, text) == ("json", "1"):
        pytest.skip("is JSON")
    path = tmp_path / f"a.{suffix}"
    path.write_text(text)
    with pytest.raises(FileError, match=rf"a\.{suffix} .*; bring it back"):
        read(path, "bring it back")
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match=rf"a\.{suffix} .*; bring it back"):
        read(path, "bring it back")


TEXTS = st.text(st.sampled_from("'=+-@\t\n,;\"ax1 "), max_size=6)


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=4), min_size=1, max_size=4))
@example([["=1+1", "'=1", "''-2", "@x", "+x", "'x"]])
def test_tables_hold_no_formulas_and_read_back(rows):
    text = csv_lines(rows)
    assert [row for _, row in csv_rows(io.StringIO(text, newline=""))] == rows
    for row in csv.reader(io.StringIO(text, newline="")):
        assert not any(cell.startswith(("=", "+", "-", "@", "\t")) for cell in row)


def test_numbers_are_no_formulas():
    assert csv_lines([["a", "b"], [-1.5, -2]]) == "a,b\n-1.5,-2\n"


def test_a_device_is_no_file_of_a_folder(tmp_path):
    """A link to one that never ends would be read for ever; this one ends at once."""
    (tmp_path / "a").symlink_to("/dev/null")
    assert not is_file_of(tmp_path / "a", hashlib.sha256(b"").hexdigest())
