"""Arrays of other programs: what comes in is what was there, and what does not fit is named."""

import nibabel
import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as array_strategy
from PIL import Image

from lightning_calib.outputs.imports.arrays import arrange, log_probs, read_array
from lightning_calib.outputs.imports.folder import ArrayFolders
from lightning_calib.outputs.imports.loop import import_cases
from lightning_calib.outputs.manifest import Member, StoreError
from lightning_calib.outputs.store import OutputStore
from lightning_calib.outputs.writer import OutputWriter

CLASSES = ["sky", "road", "car"]
SHAPE = (12, 10)


def softmax(z, axis):
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def write_arrays(root, cases=3, members=2, shape=SHAPE, seed=0):
    """``m0/``, ``m1/`` with float32 logits (C, *S), ``masks/`` with labels; returns logits and labels by case."""
    rng = np.random.default_rng(seed)
    logits, labels = {}, {}
    for folder in ("masks", *(f"m{m}" for m in range(members))):
        (root / folder).mkdir(parents=True)
    for number in range(cases):
        name = f"p{number // 2}_{number}"
        logits[name] = rng.normal(0, 4, (members, 3, *shape)).astype(np.float32)
        labels[name] = rng.integers(0, 3, shape)
        for m in range(members):
            np.save(root / f"m{m}" / f"{name}.npy", logits[name][m])
        np.save(root / "masks" / f"{name}.npy", labels[name])
    return logits, labels


def bring_in(source, path, representation="logits", **options):
    options = {"class_names": CLASSES, "spatial_dims": source.spatial_dims, "members": source.members()} | options
    writer = OutputWriter(path, "toy", representation=representation, **options)
    import_cases(writer, source.case_ids, source.load)
    return OutputStore(path)


def test_one_folder_a_member(tmp_path):
    logits, labels = write_arrays(tmp_path)
    source = ArrayFolders([tmp_path / "m0", tmp_path / "m1"], "logits", tmp_path / "masks")
    store = bring_in(source, tmp_path / "outputs")
    assert [member.name for member in store.manifest.members] == ["m0", "m1"]
    for case in store:
        np.testing.assert_array_equal(case.logits.numpy(), logits[case.case_id])
        np.testing.assert_array_equal(case.target.numpy(), labels[case.case_id])
        assert case.valid is None


@pytest.mark.parametrize(("class_axis", "member_axis"), [(0, 1), (-1, 0), (None, 0), (None, -1), (3, 2), (1, 3)])
def test_members_and_classes_on_any_axis(tmp_path, class_axis, member_axis):
    logits, labels = write_arrays(tmp_path)
    (tmp_path / "all").mkdir()
    member = member_axis % 4
    classes = next(a for a in range(4) if a != member) if class_axis is None else class_axis % 4
    for name, array in logits.items():
        np.savez(tmp_path / "all" / f"{name}.npz", z=np.moveaxis(array, (0, 1), (member, classes)), y=labels[name])
    options = {"key": "z", "target_key": "y", "class_axis": class_axis, "member_axis": member_axis}
    store = bring_in(ArrayFolders([tmp_path / "all"], "logits", **options), tmp_path / "outputs")
    assert store.manifest.num_members == 2
    for case in store:
        np.testing.assert_array_equal(case.logits.numpy(), logits[case.case_id])
        np.testing.assert_array_equal(case.target.numpy(), labels[case.case_id])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_probabilities_become_log_probabilities(tmp_path, dtype):
    logits, _ = write_arrays(tmp_path)
    for name, array in logits.items():
        for m in range(2):
            probs = softmax(array[m].astype(np.float64), 0)
            probs[:, 0, 0] = (0.0, 1.0, 0.0)
            np.save(tmp_path / f"m{m}" / f"{name}.npy", probs.astype(dtype))
    source = ArrayFolders([tmp_path / "m0", tmp_path / "m1"], "probs", tmp_path / "masks")
    with pytest.warns(UserWarning, match="probabilities .* were exactly 0"):
        store = bring_in(source, tmp_path / "outputs", "log_probs")
    smallest = np.log(float(np.finfo(dtype).tiny))
    for case in store:
        found, member = case.logits.double().numpy(), logits[case.case_id].astype(np.float64)
        np.testing.assert_allclose(found[:, [0, 2], 0, 0], smallest, rtol=1e-6)
        expected = np.maximum(np.log(softmax(member, 1)), smallest)
        found[..., 0, 0], expected[..., 0, 0] = 0, 0
        np.testing.assert_allclose(found, expected, atol=0.05 if dtype == np.float16 else 1e-5)


def test_zeros_are_counted():
    probs = np.array([[[1.0, 0.25], [0.0, 0.75], [0.0, 0.0]]], dtype=np.float32)
    values, zeros = log_probs(probs, "a")
    assert zeros == 3
    assert values.dtype == np.float32
    assert values.min() == pytest.approx(-87.3365, abs=1e-3)  # the log of 2^-126


@given(array_strategy(np.float16, (2, 4, 6), elements=st.floats(0, 1, width=16)))
def test_no_class_overtakes_another_in_the_logarithm(raw):
    raw = raw + np.float16(1e-3) * (raw.sum(1, keepdims=True) == 0)
    probs = (raw / raw.sum(1, keepdims=True, dtype=np.float64)).astype(np.float16)
    values, _ = log_probs(probs, "a")
    assert np.isfinite(values).all()
    larger = probs[:, :, None] > probs[:, None]
    assert (values[:, :, None] >= values[:, None])[larger].all()


@pytest.mark.parametrize(
    ("probs", "told"),
    [
        (np.full((1, 2, 4), 0.9), r"sum to 1\.8000 at member 0, voxel \(0,\).*sigmoid"),
        (np.full((1, 2, 4), 3.0), "--representation logits"),
        (np.full((1, 2, 4), -0.1), "--representation logits"),
        (np.full((1, 2, 4), np.nan), "8 of 8 probabilities are NaN"),
        (np.ones((1, 2, 4), dtype=np.uint8), "uint8"),
    ],
)
def test_what_is_no_probability_is_refused(probs, told):
    with pytest.raises(StoreError, match=told):
        log_probs(probs, "a.npz")


def test_nifti_keeps_its_geometry(tmp_path):
    affine = np.array([[0, -1.5, 0, 10], [2.0, 0, 0, -20], [0, 0, 3.0, 5], [0, 0, 0, 1]])
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(7, 6, 5, 3)).astype(np.float32)  # x, y, z, classes
    labels = rng.integers(0, 3, (7, 6, 5)).astype(np.uint8)
    for folder, array in (("scores", scores), ("labels", labels)):
        (tmp_path / folder).mkdir()
        nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / folder / "a.nii.gz")
    store = bring_in(ArrayFolders([tmp_path / "scores"], "logits", tmp_path / "labels"), tmp_path / "outputs")
    case = store["a"]
    np.testing.assert_array_equal(case.logits[0].numpy().transpose(3, 2, 1, 0), scores)
    np.testing.assert_array_equal(case.target.numpy().T, labels)
    np.testing.assert_allclose(case.geometry["affine"], affine)
    assert case.geometry["spacing"] == [3.0, 1.5, 2.0]
    assert case.geometry["axes"] == "zyx"
    moved = affine.copy()
    moved[0, 3] += 1
    nibabel.save(nibabel.Nifti1Image(labels, moved), tmp_path / "labels" / "a.nii.gz")
    with pytest.raises(StoreError, match="different places"):
        ArrayFolders([tmp_path / "scores"], "logits", tmp_path / "labels").load("a")


def test_labels_as_pictures_and_masks_of_what_was_predicted(tmp_path):
    _, labels = write_arrays(tmp_path, members=1)
    (tmp_path / "png").mkdir()
    (tmp_path / "seen").mkdir()
    seen = np.ones(SHAPE, dtype=np.uint8)
    seen[:3] = 0
    for name, label in labels.items():
        Image.fromarray(label.astype(np.uint8)).save(tmp_path / "png" / f"{name}.png")
        np.save(tmp_path / "seen" / f"{name}.npy", seen)
    source = ArrayFolders([tmp_path / "m0"], "logits", tmp_path / "png", valid=tmp_path / "seen")
    for case in bring_in(source, tmp_path / "outputs"):
        np.testing.assert_array_equal(case.target.numpy(), labels[case.case_id])
        np.testing.assert_array_equal(case.valid.numpy(), seen.astype(bool))


def test_an_import_goes_on_where_it_stopped(tmp_path):
    write_arrays(tmp_path, cases=4)
    source = ArrayFolders([tmp_path / "m0", tmp_path / "m1"], "logits", tmp_path / "masks")
    writer = OutputWriter(tmp_path / "outputs", "toy", CLASSES, 2, source.members())
    read = []

    def load(case_id):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(case_id)
        return source.load(case_id)

    with pytest.raises(KeyboardInterrupt):
        import_cases(writer, source.case_ids, load)
    rest = []
    again = OutputWriter(tmp_path / "outputs", "toy", CLASSES, 2, source.members())
    import_cases(again, source.case_ids, lambda case_id: rest.append(case_id) or source.load(case_id))
    assert read + rest == source.case_ids
    assert OutputStore(tmp_path / "outputs").case_ids == tuple(source.case_ids)


def test_what_does_not_belong_together_is_named(tmp_path):
    write_arrays(tmp_path, cases=3)
    (tmp_path / "masks" / "p0_1.npy").unlink()
    np.save(tmp_path / "masks" / "extra.npy", np.zeros(SHAPE, dtype=int))
    with pytest.raises(StoreError, match=r"p0_1: no target.*\n.*extra: target in"):
        ArrayFolders([tmp_path / "m0"], "logits", tmp_path / "masks")
    (tmp_path / "m1" / "p1_2.npy").unlink()
    with pytest.raises(StoreError, match=r"p1_2: no scores in .*m1"):
        ArrayFolders([tmp_path / "m0", tmp_path / "m1"], "logits", tmp_path / "masks")
    for options, told in (
        ({"targets": None}, "--target_key"),
        ({"representation": "guess"}, "say logits or probs"),
        ({"scores": [tmp_path / "m0", tmp_path / "m1"], "member_axis": 0}, "member_axis with 2 folders"),
        ({"scores": [tmp_path / "absent"]}, "no such folder"),
    ):
        arguments = {"scores": [tmp_path / "m0"], "representation": "logits", "targets": tmp_path / "masks"} | options
        with pytest.raises(StoreError, match=told):
            ArrayFolders(**arguments)


@pytest.mark.parametrize(
    ("array", "options", "told"),
    [
        (np.zeros(SHAPE[:1]), {}, "1 axes where 3 are expected"),
        (np.zeros((2, 3, *SHAPE)), {}, "--member_axis"),
        (np.zeros((*SHAPE, 3)), {}, r"12 classes on \(10, 3\).*--class_axis"),
        (np.zeros((3, *SHAPE)), {"class_axis": 5}, "class_axis = 5"),
        (np.zeros((2, 3, *SHAPE)), {"class_axis": 1, "member_axis": 1}, "both axis 1"),
    ],
)
def test_shapes_that_do_not_fit(tmp_path, array, options, told):
    for folder, content in (("scores", array), ("masks", np.zeros(SHAPE, dtype=int))):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", content)
    with pytest.raises(StoreError, match=told):
        ArrayFolders([tmp_path / "scores"], "logits", tmp_path / "masks", **options).load("a")


@pytest.mark.parametrize("array", [np.full((2, 3, 4), "1"), np.zeros((2, 3, 4), complex), np.zeros(3, "M8[s]")])
def test_arrays_of_other_values_than_numbers_are_told(tmp_path, array):
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", x=array)
    for ending in ("npy", "npz"):
        with pytest.raises(
            StoreError, match=rf"a\.{ending} cannot be read as an array of numbers \(values of the type"
        ):
            read_array(tmp_path / f"a.{ending}")


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": print}], dtype=object), allow_pickle=True)
    with pytest.raises(StoreError, match="cannot be read as an array"):
        read_array(tmp_path / "a.npy")
    (tmp_path / "b.npz").write_bytes(b"PK no archive")
    with pytest.raises(StoreError, match=r"b\.npz cannot be read"):
        read_array(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", one=np.zeros(1), two=np.zeros(1))
    with pytest.raises(StoreError, match=r"holds the arrays one, two.*--key"):
        read_array(tmp_path / "c.npz")
    with pytest.raises(StoreError, match="there is no 'three'"):
        read_array(tmp_path / "c.npz", "three")


@given(st.permutations([0, 1, 2, 3]))
def test_arranging_is_a_permutation(order):
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    member, classes, *space = order
    moved = array.transpose(np.argsort([member, classes, *sorted(space)]))
    arranged = arrange(moved, 2, "a", class_axis=classes, member_axis=member)
    np.testing.assert_array_equal(arranged, array)


def test_folders_of_one_name_get_numbers(tmp_path):
    for parent in "ab":
        write_arrays(tmp_path / parent, members=1)
    source = ArrayFolders([tmp_path / "a" / "m0", tmp_path / "b" / "m0"], "logits", tmp_path / "a" / "masks")
    assert source.members() == [Member("0"), Member("1")]


@pytest.mark.parametrize("kind", ["png", "tif", "nii.gz"])
def test_images_leave_pictures_and_their_place(tmp_path, kind):
    shape = (5, 6, 7) if kind == "nii.gz" else SHAPE
    write_arrays(tmp_path, shape=shape)
    source = ArrayFolders([tmp_path / "m0"], "logits", tmp_path / "masks")
    (tmp_path / "images").mkdir()
    for number, case_id in enumerate(source.case_ids):
        path, values = tmp_path / "images" / f"{case_id}.{kind}", np.arange(np.prod(shape)).reshape(shape) % 250
        if kind == "nii.gz":
            nibabel.save(nibabel.Nifti1Image(values.T.astype(np.float32), np.eye(4)), path)
        else:
            Image.fromarray(values.astype(np.uint8)).save(path)
        if kind == "tif":
            facts = {"crs": "EPSG:26986", "transform": rasterio.Affine(1, 0, 331000 + number, 0, -1, 4690000)}
            facts |= {"count": 1, "height": shape[0], "width": shape[1], "dtype": np.uint8}
            with rasterio.open(path, "w", driver="GTiff", **facts) as file:
                file.write(values.astype(np.uint8)[None])
    seen = ArrayFolders([tmp_path / "m0"], "logits", tmp_path / "masks", images=tmp_path / "images")
    store = bring_in(seen, tmp_path / "outputs")
    for number, case in enumerate(store):
        assert case.preview.pixels.shape == (*shape[-2:], 3)
        if kind == "tif":
            assert case.geometry["georeference"]["transform"][2] == 331000 + number
        else:
            assert case.geometry is None
    (tmp_path / "images" / f"{seen.case_ids[0]}.{kind}").unlink()
    with pytest.raises(StoreError, match=f"{seen.case_ids[0]}: no image in"):
        ArrayFolders([tmp_path / "m0"], "logits", tmp_path / "masks", images=tmp_path / "images")


def test_images_of_another_size_are_refused(tmp_path):
    write_arrays(tmp_path, cases=1)
    (tmp_path / "images").mkdir()
    Image.new("L", (3, 3)).save(tmp_path / "images" / "p0_0.png")
    source = ArrayFolders([tmp_path / "m0"], "logits", tmp_path / "masks", images=tmp_path / "images")
    with pytest.raises(StoreError, match=r"p0_0.png: the image is \(3, 3\), its labels"):
        source.load("p0_0")
