"""Frozen outputs: what is written is read back, and what is broken is named."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.datasets.preprocessing import Preprocessing
from lightning_calib.outputs.manifest import Member, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter

NAMES = ["sky", "road", "car"]
MEMBERS = [Member("0", "a.ckpt", "00"), Member("1", "b.ckpt", "11")]


def writer_at(path, **options):
    defaults = {"dataset": "toy", "class_names": NAMES, "spatial_dims": 2, "members": MEMBERS}
    return OutputWriter(path, **(defaults | options))


def make_case(seed, shape=(5, 7), members=2, scale=5.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(members, len(NAMES), *shape, generator=generator)
    return logits, torch.randint(0, len(NAMES), shape, generator=generator)


def write_store(path, count=3, **options):
    writer = writer_at(path, **options)
    for index in range(count):
        writer.write(f"case_{index}", *make_case(index))
    writer.finish()
    return path


def files_of(path):
    return {file.relative_to(path): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("shape", [(5, 7), (3, 4, 5)])
def test_what_is_written_is_read_back(tmp_path, shape):
    logits, target = make_case(0, shape)
    target[0, 0] = 255
    valid = torch.rand(shape) > 0.5
    writer = writer_at(tmp_path, spatial_dims=len(shape), ignore_index=255, background=0, groups={"a": "p1"})
    writer.write("a", logits, target, valid, geometry={"spacing": [1.0, 0.5]})
    writer.write("b.2", logits, target)
    writer.finish(["a", "b.2"])
    store = OutputStore(tmp_path)
    assert store.case_ids == ("a", "b.2")
    assert [case.case_id for case in store] == ["a", "b.2"]
    assert store.groups == {"a": "p1", "b.2": "b.2"}
    assert store["a"].geometry == {"spacing": [1.0, 0.5]}
    assert torch.equal(store["a"].logits, logits)
    assert torch.equal(store["a"].target, target)
    assert store["a"].target.dtype == torch.int64
    assert torch.equal(store["a"].valid, valid)
    assert store["b.2"].valid is None
    assert (store.manifest.num_members, store.manifest.num_classes, store.manifest.background) == (2, 3, 0)
    assert not (tmp_path / "unfinished").exists()
    store.verify()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pooled_stores_hold_the_pooled_members(tmp_path, dtype):
    logits, target = make_case(3)
    for keep in ("members", "pooled"):
        writer_at(tmp_path / keep, keep=keep, dtype=dtype).write("a", logits, target)
        writer_at(tmp_path / keep, keep=keep, dtype=dtype).finish()
    members, pooled = (OutputStore(tmp_path / keep)["a"] for keep in ("members", "pooled"))
    assert pooled.logits is None
    z = logits.double().numpy()
    probs = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    expected = {"z": z.mean(0), "p": np.log(probs.mean(0)), "p0": z[0]}
    for pooling, reference in expected.items():
        for case in (members, pooled):
            found = case.pooled(pooling)
            assert found.dtype == torch.float32
            tolerance = 1e-5 if dtype == "float32" else 1e-2
            np.testing.assert_allclose(found.numpy(), reference, atol=tolerance)


def test_float16_counts_the_voxels_whose_argmax_changed(tmp_path):
    logits = torch.zeros(2, 3, 2, 2)
    logits[:, 0, 0, 0], logits[:, 1, 0, 0] = 10.0, 10.001  # one value in float16: the lower index wins
    logits[:, 0, 0, 1], logits[:, 1, 0, 1] = 10.0, 10.001  # the same, but the label is to be ignored
    logits[:, 2, 1] = 5.0
    target = torch.tensor([[1, 255], [2, 2]])
    writer = writer_at(tmp_path, dtype="float16", ignore_index=255)
    record = writer.write("a", logits, target)
    assert record.voxels == 3
    assert record.changed_argmax == {"z": 1, "p": 1, "p0": 1}
    assert writer.finish().changed_argmax()["p"] == pytest.approx(1 / 3)
    with pytest.raises(StoreError, match=r"case b: .*float32"):
        writer.write("b", logits * 1e5, target)


def test_reading_maps_the_file(tmp_path):
    write_store(tmp_path)
    case = OutputStore(tmp_path)["case_1"]
    before = case.logits
    offset = 8 + int.from_bytes(case.path.read_bytes()[:8], "little")
    content = bytearray(case.path.read_bytes())
    content[offset:] = bytes(len(content) - offset)
    with case.path.open("r+b") as file:
        file.write(content)
    assert before.abs().sum() == 0  # a copy would have kept the old values


def test_every_damaged_file_is_named(tmp_path):
    write_store(tmp_path, count=5)
    cases = tmp_path / "cases"
    (cases / "case_0.safetensors").unlink()
    whole = (cases / "case_1.safetensors").read_bytes()
    (cases / "case_1.safetensors").write_bytes(whole[:-10])
    (cases / "case_2.safetensors").write_bytes(b"\xff" * len(whole))
    (cases / "case_3.safetensors").write_bytes(whole.replace(b'"logits"', b'"Logits"'))
    shutil.copy(cases / "case_4.safetensors", cases / "stranger.safetensors")
    with pytest.raises(StoreError) as caught:
        OutputStore(tmp_path)
    message = str(caught.value)
    assert "5 problem(s)" in message
    for number, reason in enumerate(["is missing", "truncated", "not a safetensors file", "Logits"]):
        assert any(f"case_{number}" in line and reason in line for line in message.splitlines()), message
    assert "stranger.safetensors is not in the manifest" in message


def test_verify_finds_one_changed_byte(tmp_path):
    write_store(tmp_path)
    path = tmp_path / "cases" / "case_1.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    store = OutputStore(tmp_path)  # sizes and headers are as they should be
    with pytest.raises(StoreError, match=r"case_1\.safetensors does not have the content"):
        store.verify()


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "not the manifest"), ("[]", "not the manifest"), ("{}", "not the manifest")],
)
def test_foreign_manifests_are_refused(tmp_path, content, reason):
    (tmp_path / "manifest.json").write_text(content)
    (tmp_path / "checksums.json").unlink(missing_ok=True)  # on purpose
    with pytest.raises(StoreError, match=reason):
        OutputStore(tmp_path)


def test_other_versions_and_unfinished_stores_say_what_to_do(tmp_path):
    with pytest.raises(StoreError, match=r"no output store at .*nowhere"):
        OutputStore(tmp_path / "nowhere")
    write_store(tmp_path / "run" / "outputs")
    with pytest.raises(StoreError, match=r"run is no output store, manifest\.json is missing: name .*/run/outputs"):
        OutputStore(tmp_path / "run")
    writer_at(tmp_path / "half").write("a", *make_case(0))
    with pytest.raises(StoreError, match="1 case files are there: `predict` has not finished"):
        OutputStore(tmp_path / "half")
    manifest = write_store(tmp_path / "new") / "manifest.json"
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"format_version": 99}))
    (manifest.parent / "checksums.json").unlink()  # on purpose
    with pytest.raises(StoreError, match="format version 99"):
        OutputStore(tmp_path / "new")


def test_a_store_of_the_first_version_is_read_and_continued(tmp_path):
    writer_at(tmp_path).write("a", *make_case(0))
    writer_at(tmp_path).finish()
    manifest = tmp_path / "manifest.json"
    facts = json.loads(manifest.read_text()) | {"format_version": 1}
    del facts["preprocessing"]
    manifest.write_text(json.dumps(facts))
    (manifest.parent / "checksums.json").unlink()  # on purpose
    assert OutputStore(tmp_path).manifest.preprocessing is None
    preprocessing = Preprocessing("image", 3, {"name": "pictures", "options": {}}, image_size=(8, 8))
    writer_at(tmp_path, preprocessing=preprocessing).write("b", *make_case(1))
    writer_at(tmp_path, preprocessing=preprocessing).finish()
    assert OutputStore(tmp_path).manifest.preprocessing == preprocessing
    assert OutputStore(tmp_path).case_ids == ("a", "b")


def test_a_missing_case_is_named_with_what_there_is(tmp_path):
    store = OutputStore(write_store(tmp_path))
    assert "case_0" in store
    with pytest.raises(KeyError, match=r"no case 'nothing'.*case_0"):
        store["nothing"]


def test_an_interrupted_store_goes_on_and_ends_in_the_same_bytes(tmp_path):
    whole = write_store(tmp_path / "whole")
    first = writer_at(tmp_path / "parts")
    first.write("case_2", *make_case(2))
    second = writer_at(tmp_path / "parts")
    assert second.done == {"case_2"}
    for index in (1, 0):
        second.write(f"case_{index}", *make_case(index))
    second.finish()
    assert files_of(whole) == files_of(tmp_path / "parts")
    third = writer_at(tmp_path / "parts")  # of a finished store: nothing to do, and nothing changes
    assert third.done == {"case_0", "case_1", "case_2"}
    third.finish(third.done)
    assert files_of(whole) == files_of(tmp_path / "parts")
    third.write("case_3", *make_case(3))
    third.finish()
    assert len(OutputStore(tmp_path / "parts")) == 4


def test_leftovers_of_killed_writers_go_when_the_store_is_finished(tmp_path):
    writer = writer_at(tmp_path)
    writer.write("a", *make_case(0))
    for name in (".tmpwQ2Eit", ".b.safetensors.123.part"):
        (tmp_path / "cases" / name).write_bytes(b"half")
    writer.finish()
    assert [path.name for path in (tmp_path / "cases").iterdir()] == ["a.safetensors"]


def test_a_damaged_case_is_not_taken_for_done(tmp_path):
    writer = writer_at(tmp_path)
    writer.write("a", *make_case(0))
    path = tmp_path / "cases" / "a.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert writer_at(tmp_path).done == set()
    with pytest.raises(StoreError, match="not written: a"):
        writer_at(tmp_path).finish(["a"])


def test_a_store_of_other_members_or_options_is_not_mixed(tmp_path):
    write_store(tmp_path)
    with pytest.raises(StoreError, match=r"another run .*sha256.*remove the folder"):
        writer_at(tmp_path, members=[Member("0", "a.ckpt", "00"), Member("1", "b.ckpt", "22")])
    with pytest.raises(StoreError, match="dtype: 'float32' there, 'float16' now"):
        writer_at(tmp_path, dtype="float16")
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"3 file.* of unknown origin"):
        writer_at(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"case_id": "a/b"}, "cannot name a file"),
        ({"case_id": ".a"}, "cannot name a file"),
        ({"logits": torch.zeros(1, 3, 4, 4)}, "members, classes"),
        ({"logits": torch.full((2, 3, 4, 4), torch.nan)}, "NaN"),
        ({"target": torch.full((4, 4), 3)}, r"labels \[3\]"),
        ({"target": torch.zeros(4, 4, 4)}, "2D store"),
        ({"valid": torch.ones(4, 3)}, "valid has the shape"),
    ],
)
def test_a_bad_case_is_refused(tmp_path, change, reason):
    good = {"case_id": "a", "logits": torch.zeros(2, 3, 4, 4), "target": torch.zeros(4, 4).long()}
    with pytest.raises(StoreError, match=reason):
        writer_at(tmp_path).write(**(good | change))
    assert not list((tmp_path / "cases").iterdir())


@pytest.mark.parametrize(
    "change",
    [{"background": 3}, {"ignore_index": 1}, {"class_names": ["one"]}, {"members": []}, {"keep": "all"}],
)
def test_contradictory_facts_are_refused(tmp_path, change):
    with pytest.raises(StoreError):
        writer_at(tmp_path, **change)


@pytest.mark.parametrize("options", [{}, {"keep": "pooled"}, {"dtype": "float16"}])
def test_the_size_is_known_before_writing(tmp_path, options):
    writer = writer_at(tmp_path, **options)
    record = writer.write("a", *make_case(0, (64, 48)), valid=torch.ones(64, 48))
    estimate = writer.reserve(1, (64, 48))
    assert record.size <= estimate <= record.size + 1024


def test_what_the_disk_cannot_hold_is_refused_up_front(tmp_path):
    with pytest.raises(StoreError, match=r"10000000 cases of 1000x1000 voxels need .* GB .* GB are free"):
        writer_at(tmp_path).reserve(10_000_000, (1000, 1000))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), st.randoms())
def test_the_order_of_writing_does_not_matter(tmp_path_factory, names, random):
    tmp_path = tmp_path_factory.mktemp("order")
    stores = []
    for run in range(2):
        writer = writer_at(tmp_path / str(run))
        for name in names:
            writer.write(name, *make_case(ord(name), (2, 3)))
        writer.finish()
        stores.append(files_of(tmp_path / str(run)))
        random.shuffle(names)
    assert stores[0] == stores[1]


KILLED = """
import sys, torch
from tests.outputs.test_store import writer_at, make_case
writer = writer_at(sys.argv[1])
for index in range(200):
    writer.write(f"case_{index:03d}", *make_case(index, (64, 64)))
    print(index, flush=True)
"""


def test_a_killed_writer_leaves_no_broken_case(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE
    )
    for _ in range(5):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    writer = writer_at(tmp_path)
    done = writer.done
    assert 5 <= len(done) < 200
    for index in range(len(done) + 2):
        if f"case_{index:03d}" not in done:
            writer.write(f"case_{index:03d}", *make_case(index, (64, 64)))
    writer.finish()
    store = OutputStore(tmp_path)
    store.verify()
    for index, case in enumerate(store):
        assert torch.equal(case.logits, make_case(index, (64, 64))[0])


def test_the_example_of_the_documentation_runs(capsys):
    page = (Path(__file__).parents[2] / "docs" / "outputs.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(example, "docs/outputs.md", "exec"), {})
    assert "frame_2 torch.Size([2, 2, 16, 16]) torch.Size([2, 16, 16])" in capsys.readouterr().out


@pytest.mark.parametrize("case_id", ["../../deployed/deployment", "/etc/passwd", "..", "", "a\\b", ".hidden", 3])
def test_an_id_that_leads_out_of_the_store_is_refused_on_every_load(tmp_path, case_id):
    write_store(tmp_path / "outputs", count=1)
    manifest = tmp_path / "outputs" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["cases"][0]["case_id"] = case_id
    manifest.write_text(json.dumps(facts))
    (manifest.parent / "checksums.json").unlink()  # on purpose
    with pytest.raises(StoreError, match="cannot name a file"):
        OutputStore(tmp_path / "outputs")
