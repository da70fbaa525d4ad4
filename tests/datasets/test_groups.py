"""Nested groups from names and tables."""

import pytest

from lightning_calib.datasets.cases import Case
from lightning_calib.datasets.folder import Folder
from lightning_calib.datasets.groups import find_groups, nested
from lightning_calib.datasets.volume_folder import VolumeFolder
from tests import layouts

IDS = ["utrecht_p1_a", "utrecht_p1_b", "utrecht_p2_a", "oslo_p1_a"]
PATTERN = "^([a-z]+)_(p[0-9]+)_"


def test_one_pair_of_parentheses_is_one_level():
    grouping, strange = find_groups(["p1_a", "p1_b", "p2_a", "x"], "^(p[0-9])")
    assert grouping.levels == ("group",)
    assert grouping.whole == "group"
    assert grouping.names == {"p1_a": ("p1",), "p1_b": ("p1",), "p2_a": ("p2",)}
    assert strange == ["x: group_regex '^(p[0-9])' does not fit the name"]


def test_without_groups_each_case_is_its_own():
    grouping, strange = find_groups(["x"])
    assert (grouping.levels, grouping.whole, strange) == ((), "case", [])
    assert [case.group(grouping.depth) for case in grouping.assign([Case("x")])] == ["x"]


@pytest.mark.parametrize(
    ("pattern", "levels"),
    [
        (PATTERN, ("group1", "group2")),
        ("^(?P<site>[a-z]+)_(?P<patient>p[0-9]+)_", ("site", "patient")),
        ("^(?P<site>[a-z]+)_(?P<patient>p([0-9]+))_", ("site", "patient")),  # with names, only named pairs count
    ],
)
def test_several_pairs_are_nested(pattern, levels):
    grouping, strange = find_groups(IDS, pattern)
    assert grouping.levels == levels
    assert grouping.whole == levels[0]
    assert not strange
    cases = grouping.assign(map(Case, IDS))
    assert [case.group(1) for case in cases] == ["utrecht", "utrecht", "utrecht", "oslo"]
    assert [case.group(2) for case in cases] == ["utrecht/p1", "utrecht/p1", "utrecht/p2", "oslo/p1"]


def test_a_pair_that_takes_no_part_in_the_match_fits_not():
    assert find_groups(["oslo_1"], "^([a-z]+)_(p[0-9]+)?")[1] == [
        "oslo_1: group_regex '^([a-z]+)_(p[0-9]+)?' does not fit the name"
    ]


def test_a_table_says_the_same(tmp_path):
    table = tmp_path / "groups.csv"
    rows = [f"{i},{i.split('_')[0]}, {i.split('_')[1]}" for i in IDS]
    table.write_text("\n".join(["case_id,site,patient", *rows, "another,x,y", ""]))
    grouping, strange = find_groups([*IDS, "new"], table=table, whole="patient")
    assert grouping.names == find_groups(IDS, PATTERN)[0].names
    assert (grouping.levels, grouping.whole, grouping.depth) == (("site", "patient"), "patient", 2)
    assert strange == [f"new: {table} does not name the groups"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the first line names the columns"),
        ("id,site\na,b\n", "the first line names the columns"),
        ("case_id,site\na,b\na,c\n", "a case is listed twice"),
        ("case_id,site,site\na,b,c\n", "two levels of groups have one name"),
        ("case_id,case\na,b\n", "'case' cannot name a level"),
        ("case_id,site,patient\na,b\n", "the line of a does not have the 3 columns"),
        ("case_id,site,patient\na,b/c,d\n", "must have no slash"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, told):
    (tmp_path / "groups.csv").write_text(text)
    with pytest.raises(ValueError, match=told):
        find_groups(["a"], table=tmp_path / "groups.csv")


def test_contradictions_are_refused(tmp_path):
    with pytest.raises(ValueError, match="give one of them"):
        find_groups(IDS, PATTERN, tmp_path / "groups.csv")
    with pytest.raises(ValueError, match="no level of groups 'hospital'; choose one of group1, group2, case"):
        find_groups(IDS, PATTERN, whole="hospital")
    with pytest.raises(ValueError, match="cannot be read"):
        find_groups(IDS, table=tmp_path / "absent.csv")
    with pytest.raises(TypeError, match=r"write \('p1',\)"):
        Case("a", groups="p1")


def test_names_of_levels_that_are_not_named():
    assert nested({"a": ("x", "y")}, None) == ({"a": ("x", "y")}, ("group1", "group2"))
    assert nested({"a": ("x", "y")}, ["site", "patient"])[1] == ("site", "patient")
    assert nested(None, None) == ({}, ())


def test_a_folder_keeps_the_level_whole_that_is_chosen(tmp_path):
    root = layouts.write_folder(tmp_path)  # p00_a, p00_b, p01_a, ...
    options = {"group_regex": "^(?P<patient>p[0-9]+)_(?P<visit>[ab])", "batch_size": 1}
    module = Folder(root, ["a", "b", "c"], **options)
    assert (module.group_levels, module.group_level) == (("patient", "visit"), "patient")
    assert {i: module.groups[i] for i in module.pool_ids} == {i: i[:3] for i in module.pool_ids}
    assert "(patient: " in module.summary()
    (tmp_path / "pool.txt").write_text("p03_b\n")
    with pytest.raises(ValueError, match="group 'p03' is in"):
        Folder(root, ["a", "b", "c"], pool_list=tmp_path / "pool.txt", **options)
    torn = Folder(root, ["a", "b", "c"], pool_list=tmp_path / "pool.txt", group_level="visit", **options)
    assert torn.groups == {"p03_b": "p03/b"}


def test_volumes_have_groups_by_table(tmp_path):
    root = layouts.write_volume_folder(tmp_path)
    ids = sorted(path.name.split(".")[0] for path in (root / "images").iterdir())
    lines = [f"{name},s{n % 2},{name}" for n, name in enumerate(ids)]
    (tmp_path / "groups.csv").write_text("\n".join(["case_id,site,patient", *lines]))
    module = VolumeFolder(root, ["a", "b", "c"], groups_csv=tmp_path / "groups.csv", group_level="patient")
    assert module.groups == {i: f"s{ids.index(i) % 2}/{i}" for i in module.pool_ids}
