"""Made-up DICOM series, one file a slice, as a scanner writes them."""

from pathlib import Path

import numpy as np
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, MRImageStorage, generate_uid

# Rows and columns of a plane that is oblique to all three axes.
OBLIQUE = (0.8, 0.6, 0.0, -0.36, 0.48, 0.8)
STRAIGHT = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
STORAGE = {"MR": MRImageStorage, "CT": CTImageStorage}


def write_series(
    folder: Path,
    values,
    spacing=(2.5, 0.8, 0.7),
    orientation=OBLIQUE,
    origin=(-31.0, 12.5, 47.0),
    slope: float = 1.0,
    intercept: float = 0.0,
    modality: str = "MR",
    seed: int = 0,
    change=lambda number, header: None,
) -> Path:
    """Write stored values ``(D, rows, columns)``, 16-bit; names and numbers of the files say nothing of the order.

    Args:
        folder: where to.
        values: stored values; those of the modality are ``slope * values + intercept``.
        spacing: between slices, rows and columns, in mm.
        orientation: direction of a row, then of a column.
        origin: centre of the first voxel, in DICOM's axes.
        slope: of the rescaling.
        intercept: of the rescaling.
        modality: MR or CT.
        seed: of the names' order and the identifiers.
        change: changes the header of a slice, known by its number.
    """
    values = np.asarray(values)
    rng = np.random.default_rng(seed)
    row, column = np.array(orientation[:3]), np.array(orientation[3:])
    normal = np.cross(row, column)
    series, study, frame = (generate_uid(entropy_srcs=[str(seed), folder.name, part]) for part in ("s", "t", "f"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(rng.permutation(len(values))):
        header = Dataset()
        header.file_meta = FileMetaDataset()
        header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = STORAGE[modality]
        header.SOPInstanceUID = generate_uid(entropy_srcs=[series, str(number)])
        header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID
        header.SeriesInstanceUID, header.StudyInstanceUID, header.FrameOfReferenceUID = series, study, frame
        header.PatientName, header.PatientID, header.PatientBirthDate, header.PatientSex = "Made^Up", "made-up", "", "O"
        header.StudyDate, header.StudyTime, header.AccessionNumber, header.StudyID = "20240229", "101500", "", "1"
        header.ReferringPhysicianName, header.Modality, header.Manufacturer = "", modality, "lightning_calib tests"
        header.SeriesNumber, header.InstanceNumber, header.PositionReferenceIndicator = 3, int(name) + 1, ""
        header.ImageType = ["ORIGINAL", "PRIMARY", "OTHER"]
        header.Rows, header.Columns = values.shape[1:]
        header.ImageOrientationPatient = [float(x) for x in orientation]
        header.ImagePositionPatient = [float(f"{x:.6f}") for x in np.array(origin) + number * spacing[0] * normal]
        header.PixelSpacing, header.SliceThickness = [float(spacing[1]), float(spacing[2])], float(spacing[0])
        header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
        header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 16, 15, 1
        header.PatientPosition = "HFS"
        if modality == "MR":
            header.ScanningSequence, header.SequenceVariant, header.ScanOptions = "GR", "NONE", ""
            header.MRAcquisitionType, header.RepetitionTime, header.EchoTime, header.EchoTrainLength = "3D", 9, 4, 1
        if modality == "CT" or (slope, intercept) != (1, 0):
            header.RescaleSlope, header.RescaleIntercept = float(slope), float(intercept)
        header.PixelData = values[number].astype("<i2").tobytes()
        change(number, header)
        header.save_as(folder / f"IM{int(name):04d}", enforce_file_format=True)
    return folder


def corners_mm(affine, shape):
    """Places of a grid's corners ``(8, 3)``; ``shape`` is that of the affine's own axes."""
    index = np.array([[(n - 1) * bit for n, bit in zip(shape, bits, strict=True)] for bits in np.ndindex(2, 2, 2)])
    return (np.c_[index, np.ones(8)] @ np.asarray(affine).T)[:, :3]
