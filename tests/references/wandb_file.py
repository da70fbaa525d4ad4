"""Reading of the transaction log of an offline W&B run: LevelDB's log format behind a header of 7 bytes."""

import struct

from wandb.proto import wandb_internal_pb2

BLOCK = 32_768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def wandb_records(path):
    """All records of a `run-*.wandb` file."""
    data = path.read_bytes()
    assert data[:4] == b":W&B", f"{path} is no W&B log"
    records, at, parts = [], 7, []
    while at + 7 <= len(data):
        left = BLOCK - at % BLOCK
        if left < 7:  # a block's tail too short for a header is padding
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            records.append(record)
            parts = []
    return records
