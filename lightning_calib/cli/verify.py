"""``calibrate.py verify``: is an output store whole and unchanged?"""

import json as json_format
from pathlib import Path

from lightning_calib.outputs.manifest import StoreError
from lightning_calib.outputs.store import OutputStore


def verify(outputs: Path, json: bool = False) -> int:
    """Check presence, sizes, headers and hashes of every file of an output store.

    Args:
        outputs: folder of the store, such as runs/camvid/outputs.
        json: print the finding as JSON.

    Returns:
        0 where everything is as the manifest records it, 1 otherwise.
    """
    problem = ""
    cases = 0
    try:
        store = OutputStore(outputs)
        cases = len(store)
        store.verify()
    except StoreError as error:
        problem = str(error)
    if json:
        print(json_format.dumps({"outputs": str(outputs), "ok": not problem, "cases": cases, "problem": problem}))
    else:
        print(problem or f"{outputs}: {cases} cases, all as the manifest records them")
    return 1 if problem else 0
