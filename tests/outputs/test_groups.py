"""Nested groups of a store: written, read in every format, kept whole by partitions."""

import json
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_calib.experiment.plan import Experiment, FitJob
from lightning_calib.kit.checksums import CHECKSUMS
from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.partition import make_split, whole_groups
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.stored import StoredOutputsDataModule
from tests.outputs.test_store import make_case, writer_at

LEVELS = ("site", "patient")


def site_and_patient(number):
    return (f"s{number // 4}", f"p{number // 2 % 2}")


def write(path, count=16, **options):
    names = {f"case_{n:02d}": site_and_patient(n) for n in range(count)}
    writer = writer_at(path, **({"groups": names, "group_levels": LEVELS} | options))
    for number, case_id in enumerate(names):
        writer.write(case_id, *make_case(number))
    writer.finish()
    return OutputStore(path)


def older(store, version):
    """The same store as an older release wrote it."""
    path = store.path / "manifest.json"
    facts = json.loads(path.read_text()) | {"format_version": version}
    for name in ("group_levels", "group_level"):
        del facts[name]
    for case in facts["cases"]:
        case["group"] = "-".join(case.pop("groups")) or case["case_id"]
    path.write_text(json.dumps(facts))
    (store.path / CHECKSUMS).unlink()  # older releases wrote none
    return OutputStore(store.path)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write(tmp_path_factory.mktemp("groups"))


def test_levels_are_nested_and_the_coarsest_stays_whole(store):
    assert store.group_levels == LEVELS
    assert store.groups_at("site") == store.groups_at(0) == store.groups
    assert store.groups_at("patient")["case_06"] == store.groups_at(1)["case_06"] == "s1/p1"
    assert store.groups_at("case")["case_06"] == "case_06"
    assert store["case_06"].group == "s1"


def test_another_level_can_be_the_one_that_stays_whole(tmp_path):
    store = write(tmp_path, group_level="patient")
    assert store.groups == store.groups_at("patient")
    assert store["case_06"].group == "s1/p1"


def test_a_level_that_is_not_there_is_named_with_those_that_are(store, tmp_path):
    with pytest.raises(ValueError, match="no level of groups 'hospital'; choose one of site, patient, case"):
        store.groups_at("hospital")
    for number in (2, -1):
        with pytest.raises(ValueError, match=rf"no level {number} of groups; there are 2, from 0"):
            store.groups_at(number)
    with pytest.raises(StoreError, match="no level of groups 'hospital'"):
        write(tmp_path, group_level="hospital")
    with pytest.raises(ValueError, match=r"case_00 has the groups .* for the levels \(site\)"):
        write(tmp_path, group_levels=["site"])


def test_stores_without_groups_have_cases_only(tmp_path):
    store = write(tmp_path, groups=None, group_levels=None)
    assert store.group_levels == ()
    assert store.groups == {case_id: case_id for case_id in store.case_ids}


@pytest.mark.parametrize("version", [1, 2])
def test_stores_with_one_group_a_case_are_read_and_brought_up_to_date(tmp_path, version):
    old = older(write(tmp_path), version)
    assert old.group_levels == ("group",)
    assert old.groups["case_06"] == "s1-p1"
    writer_at(tmp_path, groups={i: i.split("_") for i in old.case_ids}, group_levels=["kind", "number"]).finish()
    assert OutputStore(tmp_path).groups_at("number")["case_06"] == "case/06"


def test_older_stores_without_groups_have_none(tmp_path):
    old = older(write(tmp_path, groups=None, group_levels=None), 2)
    assert old.group_levels == ()
    assert old.groups["case_06"] == "case_06"


def test_a_writer_that_knows_no_groups_keeps_those_there_are(tmp_path):
    before = write(tmp_path).groups_at("patient")
    writer = writer_at(tmp_path)
    writer.write("new", *make_case(99))
    writer.finish()
    after = OutputStore(tmp_path)
    assert after.group_levels == LEVELS
    assert after.groups_at("patient") == before | {"new": "new/new"}


@given(
    counts=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=5, max_size=9),
    level=st.sampled_from(LEVELS),
    repeat=st.integers(0, 4),
    seed=st.integers(0, 2**31),
)
def test_a_partition_keeps_the_chosen_level_whole(counts, level, repeat, seed):
    names = {
        f"s{s}_p{p}_{i}": (f"s{s}", f"s{s}/p{p}")
        for s, patients in enumerate(counts)
        for p, cases in enumerate(patients)
        for i in range(cases)
    }

    class Store:
        path, case_ids = "outputs", tuple(sorted(names))

        @staticmethod
        def groups_at(level):
            return {case_id: groups[LEVELS.index(level)] for case_id, groups in names.items()}

    split = make_split(Store, repeat, (0.4, 0.2, 0.4), seed, whole_groups(Store, False, level))
    assert sorted(split.cal + split.val + split.test) == list(Store.case_ids)
    for held in LEVELS[LEVELS.index(level) :]:  # a finer level is whole where a coarser one is
        parts = [{Store.groups_at(held)[i] for i in part} for part in (split.cal, split.val, split.test)]
        assert all(parts)
        assert all(not a & b for a, b in combinations(parts, 2))


def test_data_and_experiment_keep_the_chosen_level_whole(store):
    sizes = {"cal": 0.5, "val": 0.25, "test": 0.25}
    data = StoredOutputsDataModule(store, group_level="site", cache=False, **sizes)
    experiment = Experiment(store, "ts(z)", group_level="site", **sizes)
    assert experiment.groups == store.groups_at("site")
    assert data.split == experiment.split(0) == experiment.data(0, "z").split
    parts = [{store.groups_at("site")[i] for i in data.ids(part)} for part in ("cal", "val", "test")]
    assert list(map(len, parts)) == [2, 1, 1]
    assert set.union(*parts) == set(store.groups.values())
    assert Experiment(store, "ts(z)", selection="paper", **sizes).groups is None


def test_the_name_of_the_level_is_no_part_of_a_fit(store):
    job, sizes = FitJob(0, "ts(z)"), {"cal": 8, "val": 4, "test": 4}
    own, named, finer = (
        Experiment(store, "ts(z)", **sizes, **options).fit_hash(job)
        for options in ({"group_aware": True}, {"group_level": "site"}, {"group_level": "patient"})
    )
    assert own == named != finer
