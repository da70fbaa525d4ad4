"""Small and read-only disks."""

import contextlib
import os
import shutil
import subprocess
import sys

MOUNTS = sys.platform == "linux" and os.geteuid() == 0 and shutil.which("unshare") is not None


@contextlib.contextmanager
def small_disk(place, kilobytes):
    """A disk of so many kilobytes."""
    place.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", place)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def resized(place, kilobytes):
    """Give a small disk another size."""
    _mount("-o", f"remount,size={kilobytes}k", place)


def read_only(place):
    """Let nobody write to a small disk."""
    _mount("-o", "remount,ro", place)


def can_mount(tmp_path):
    """Whether this machine lets us."""
    place = tmp_path / "probe"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=False, capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", str(place)], check=True)
    return done.returncode == 0


def _mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True)
