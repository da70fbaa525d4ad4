"""What two processes run to be compared with one."""

import multiprocessing
import os
import socket
import warnings
from pathlib import Path

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.strategies import DDPStrategy

from lightning_calib.data.stored import StoredOutputsDataModule
from lightning_calib.tasks.calibration import CalibrationTask

ADAM_STEPS = 20


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
    (scores,) = trainer.test(task, data, verbose=False)
    log_probs = [task.calibrator.cpu()(logits).detach() for logits, _, _ in data.batches("test")]
    return {
        "log_probs": torch.cat(log_probs),
        "scores": scores,
        "curve": task.selection.curve,
        "objective": task.certificate.objective if task.certificate else 0.0,
        "steps": trainer.global_step,
        "rank": trainer.global_rank,
    }


def run_two(store: Path, solver: str, folder: Path) -> dict[str, object]:
    """The result of rank 0; forked processes need not import everything again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_work, args=(store, solver, folder, rank, port)) for rank in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads
        for process in processes:
            process.start()
    for process in processes:
        process.join(200)
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    found: dict[str, object] = torch.load(folder / "0.pt", weights_only=True)
    return found


def _work(store: Path, solver: str, folder: Path, rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"WORLD_SIZE": "2", "NODE_RANK": "0", "LOCAL_RANK": str(rank), "RANK": str(rank)}
    torch.save(run(store, solver, devices=2), folder / f"{rank}.pt")
