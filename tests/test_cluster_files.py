"""The files of docs/cluster: shell syntax, what the SLURM scripts start, the fields that KubeRay asks for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

CLUSTER = Path(__file__).parents[1] / "docs" / "cluster"

# SLURM's commands and Ray's, as far as the scripts use them: they note what they are asked to do.
SHIMS = {
    "scontrol": 'printf "n1\\nn2\\nn3\\n"',
    "srun": """
        node=$(printf "%s\\n" "$@" | sed -n "s/--nodelist=//p")
        while [ "${1#--}" != "$1" ]; do shift; done
        NODE=${node:-here} "$@" """,
    "ray": """
        echo "$NODE ray $*" >> "$CALLS"
        if [ "$1" = status ]; then sed -n "s/ ray start.*/ 1 node_/p" "$CALLS"; fi""",
    "python": 'echo "$NODE python $*" >> "$CALLS"',
}


def submitted(script: Path, folder: Path, **variables) -> list[str]:
    """What a script does where SLURM starts it, line by line."""
    commands = folder / "bin"
    commands.mkdir()
    for name, body in SHIMS.items():
        (commands / name).write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        (commands / name).chmod(0o755)
    (commands / "activate").write_text("", encoding="utf-8")
    environment = {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "VENV": str(folder),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_ID": "41234",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_PER_TASK": "32",
        **variables,
    }
    line = ["bash", str(script), "--outputs", "some folder/outputs"]
    subprocess.run(line, env=environment, check=True, timeout=60, capture_output=True)
    return (folder / "calls").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("script", sorted(CLUSTER.glob("*.sbatch")), ids=lambda path: path.name)
def test_shell_syntax(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--exclude=SC1091", str(script)], check=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    first_command = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    last_option = max(n for n, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert last_option < first_command  # SLURM reads no further


def test_slurm_starts_a_head_then_workers_then_the_run(tmp_path):
    calls = submitted(CLUSTER / "calibrate.sbatch", tmp_path, SLURM_GPUS_ON_NODE="4")
    starts = [line for line in calls if " ray start" in line]
    assert [line.split()[0] for line in starts if "--head" in line] == ["n1"]
    assert sorted(line.split()[0] for line in starts if "--address=n1:21234" in line) == ["n2", "n3"]
    assert all("--num-cpus=32 --num-gpus 4" in line for line in starts)
    run = "n1 python calibrate.py run --executor ray --executor.address n1:21234 --outputs some folder/outputs"
    assert calls[-1] == run


def test_slurm_without_gpus_says_nothing_of_them(tmp_path):
    assert "gpus" not in "\n".join(submitted(CLUSTER / "calibrate.sbatch", tmp_path))


def test_independent_calls_join_one_folder(tmp_path):
    (call,) = submitted(CLUSTER / "join.sbatch", tmp_path)
    assert call == "here python calibrate.py run --join true --workers 32 --outputs some folder/outputs"


def test_the_kubernetes_job_has_what_kuberay_asks_for():
    job = yaml.safe_load((CLUSTER / "rayjob.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["name"]
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert len(groups) > 1
    for group in groups:
        assert isinstance(group["rayStartParams"], dict)
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"].endswith(f":{cluster['rayVersion']}")
        assert container["resources"]["limits"] == container["resources"]["requests"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounted == {"shared": "/shared"}
        assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    for group in cluster["workerGroupSpecs"]:
        assert group["groupName"]
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    words = job["spec"]["entrypoint"].split()
    assert words[:3] == ["lightning-calib", "calibrate", "run"]
    assert words[words.index("--outputs") + 1].startswith("/shared/")
