"""What two processes run to be compared with one."""

import faulthandler
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy

from lightning_calib.experiment.search.search import search
from lightning_calib.outputs.stored import StoredOutputsDataModule
from lightning_calib.tasks.calibration import CalibrationTask
from lightning_calib.tasks.evaluation import EvaluationTask

ROOT = Path(__file__).parents[2]
SOLVERS = ("adam", "newton")
ADAM_STEPS = 20
FINALS, ADAM_FINALS = ("cms_op(z)", "ets(p)"), ("ms(z)",)


def run(store: Path, solver: str, devices: int) -> dict[str, object]:
    """Fit CMS_op and test it; an odd number of cases makes the shares uneven."""
    data = StoredOutputsDataModule(store, pooling="z", cal=5, val=3, batch_voxels=301)
    name = "cms_op" if solver == "newton" else "cms_ap"
    task = CalibrationTask(name, data.num_classes, ignore_index=data.ignore_index, solver=solver)
    data.train_batches = task.batches
    if solver == "adam":
        task.double()
    strategy = DDPStrategy(process_group_backend="gloo") if devices > 1 else "auto"
    trainer = Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_epochs=300 if solver == "newton" else -1,
        max_steps=ADAM_STEPS if solver == "adam" else -1,
        limit_val_batches=1.0 if solver == "newton" else 0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(task, data)
    steps = trainer.global_step
    judged = EvaluationTask({"fitted": task.calibrator}, data.ignore_index, data.background)
    trainer.test(judged, data, verbose=False)
    log_probs = [task.calibrator.cpu()(logits).detach() for logits, _, _ in data.batches("test")]
    return {
        "log_probs": torch.cat(log_probs),
        "scores": judged.evaluated["fitted"].figures(),
        "curve": task.curve,
        "objective": task.certificate.objective if solver == "newton" else 0.0,
        "steps": steps,
        "rank": trainer.global_rank,
    }


def run_final(store: Path, name: str, devices: int) -> dict[str, object]:
    """The selected fit of a search under a Trainer of several processes."""
    data = StoredOutputsDataModule(store, cal=5, val=3, batch_voxels=301)
    adam = name in ADAM_FINALS
    found = search(name, data, trials=2, solver="adam" if adam else "auto", accelerator="cpu", max_epochs=3)
    strategy = DDPStrategy(process_group_backend="gloo") if devices > 1 else "auto"
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    task = found.final_fit(Trainer(accelerator="cpu", devices=devices, strategy=strategy, max_epochs=300, **silent))
    assert task is not None
    log_probs = [task.calibrator.cpu()(logits).detach() for logits, _, _ in data.batches("test")]
    return {"log_probs": torch.cat(log_probs), "val_nll": task.val_nll, "searched": found.val_nll}


def run_two(store: Path, folder: Path) -> dict[str, dict[str, object]]:
    """Results of rank 0 by solver; the processes find each other as those of ``torchrun`` do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.tasks.ddp", str(store), str(folder / "two.pt")]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | common | {"LOCAL_RANK": rank, "RANK": rank})
        for rank in ("0", "1")
    ]
    for process in processes:
        process.wait(300)
    assert [process.returncode for process in processes] == [0, 0]
    found: dict[str, dict[str, object]] = torch.load(folder / "two.pt", weights_only=True)
    return found


if __name__ == "__main__":
    faulthandler.dump_traceback_later(280, exit=True)  # where two processes wait for each other
    torch.set_num_threads(1)
    results = {solver: run(Path(sys.argv[1]), solver, devices=2) for solver in SOLVERS}
    results |= {name: run_final(Path(sys.argv[1]), name, devices=2) for name in (*FINALS, *ADAM_FINALS)}
    if os.environ["RANK"] == "0":
        torch.save(results, sys.argv[2])
