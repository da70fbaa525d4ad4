"""The report says how many groups each part has, and what follows from that."""

from types import SimpleNamespace

import pytest

from lightning_calib.report.division import conclusion, count_groups
from lightning_calib.report.sections.provenance import provenance

CASES = [f"s{s}p{p}c{c}" for s in range(12) for p in range(2) for c in range(2)]
SITE, PATIENT = {i: i.partition("p")[0] for i in CASES}, {i: i.partition("c")[0] for i in CASES}


def by_site(cal, val, test):
    """Whole sites in each part."""
    bounds = {"cal": (0, cal), "val": (cal, cal + val), "test": (cal + val, cal + val + test)}
    return {part: [i for i in CASES if a <= int(SITE[i][1:]) < b] for part, (a, b) in bounds.items()}


def said(*splits):
    return conclusion([count_groups("site", SITE, splits), count_groups("patient", PATIENT, splits)])


def test_numbers_of_all_repeats():
    counts = count_groups("site", SITE, [by_site(4, 2, 6), by_site(3, 2, 5)])
    assert counts.text == "3 to 4 / 2 / 5 to 6"
    assert (counts.fitting, counts.torn) == (5, 0)


def test_enough_whole_groups_are_the_unit():
    text = said(by_site(4, 2, 6))
    assert "No group (site) is in two parts" in text
    assert "the group, 6 in test, not the case" in text
    assert "too few" not in text


def test_too_few_groups_on_either_side_are_said():
    assert "test has only 4: fewer than 5 allow no conclusion across groups (site)" in said(by_site(4, 2, 4))
    assert "cal and val have 4 together: too few to choose" in said(by_site(3, 1, 6))


def test_a_level_without_a_name_of_its_own_is_not_named():
    text = conclusion([count_groups("group", SITE, [by_site(4, 2, 4)])])
    assert text.startswith("No group is in two parts, but test has only 4")
    assert "(" not in text


def test_a_coarser_level_that_is_torn_allows_nothing_across_it():
    split = {"cal": CASES[0::4] + CASES[1::4], "val": [], "test": CASES[2::4] + CASES[3::4]}
    text = said(split)
    assert text.startswith("No group (patient) is in two parts")
    assert "Cases of one group (site) are in several parts" in text
    assert "--group_level site" in text
    assert count_groups("site", SITE, [split]).torn == 12


def test_cases_divided_one_by_one():
    text = said({"cal": CASES[0::2], "val": [], "test": CASES[1::2]})
    assert "(site) are in several parts" in text
    assert "(patient) are in several parts" in text
    assert "No group" not in text


@pytest.mark.parametrize("known", [True, False])
def test_the_section_on_the_division_says_it(known):
    class Store:
        group_levels = ("site", "patient")

        def __contains__(self, case):
            return case in SITE

        def groups_at(self, level):
            return {"site": SITE, "patient": PATIENT}[level]

    dataset = {"name": "toy", "class_names": ["a", "b"], "num_members": 2, "num_cases": len(CASES)}
    results = SimpleNamespace(
        settings={}, folder="calibration", dataset=dataset, repeats=[0], pipelines=[], split=lambda _: by_site(4, 2, 6)
    )
    section = provenance(SimpleNamespace(results=results, store=Store() if known else None))
    facts = dict(section.data["facts"])
    assert facts["cases in cal / val / test"] == "16 / 8 / 24"
    if known:
        assert facts["groups in cal / val / test: site"] == "4 / 2 / 6"
        assert facts["groups in cal / val / test: patient"] == "8 / 4 / 12"
    assert ("No group (site) is in two parts" in section.data["division"]) == known
