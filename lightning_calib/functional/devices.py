"""Where tensors are worked on: what a device takes at once, how data get there, how numbers come back.

Work on a GPU is queued: the host runs ahead of it until it asks for a number, then waits until everything before is
done. So nothing asks inside an image; what must be known of one is asked for once.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")

# Values (voxels times classes) in a chunk that keep a GPU busy: more at a time is no faster.
BUSY_VALUES = 2**24

# What the temporaries of a chunk take for each value (bins and float64 sums of class-wise tables are the most), and
# the share of free memory that they may have: others of the same process and of other jobs need some, too.
VALUE_BYTES, SHARE = 64, 4


def named_device(name: str) -> torch.device:
    """A device by its name, if there is one here.

    Example:
        >>> named_device("cpu")
        device(type='cpu')
        >>> named_device("gpu7")
        Traceback (most recent call last):
        ValueError: device gpu7 cannot be used here (...); leave it out for the CPU
    """
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as problem:  # the latter from builds without CUDA
        reason = str(problem).partition("\n")[0]
        raise ValueError(f"device {name} cannot be used here ({reason}); leave it out for the CPU") from problem


def sums_device(device: torch.device) -> torch.device:
    """Where float64 sums are taken: on the device itself, unless it has no float64 or no repeatable sums."""
    repeatable = device.type == "cpu" or not torch.are_deterministic_algorithms_enabled()
    return device if repeatable and device.type != "mps" else torch.device("cpu")


def accelerator_of(accelerator: Any) -> Any:  # noqa: ANN401  # also Lightning's own objects
    """Where calibration runs, in Lightning's words: as asked, or on the CPU where that would be Apple's MPS.

    MPS has no float64. Sums of millions of voxels in float32 are wrong, and to send every voxel to the CPU to be summed
    there is slower than to work there.

    Example:
        >>> accelerator_of("cpu")
        'cpu'
    """
    asked = accelerator == "mps"
    found = accelerator == "auto" and torch.backends.mps.is_available() and not torch.cuda.is_available()
    if asked:
        warnings.warn("MPS has no float64, which calibration sums in: working on the CPU", stacklevel=2)
    return "cpu" if asked or found else accelerator


def device_of(accelerator: str) -> torch.device:
    """The first device of an accelerator in Lightning's words; which one that is, the executor says.

    Example:
        >>> device_of("cpu")
        device(type='cpu')
    """
    accelerator = accelerator_of(accelerator)
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    return torch.device("cuda", 0) if on_gpu else torch.device("cpu")


def chunk_values(device: torch.device, on_cpu: int) -> int:
    """Values (voxels times classes) to work on at once.

    On a GPU a fixed number, so that its sums are repeatable; where memory is short, a smaller power of two.

    Args:
        device: where the work is done.
        on_cpu: what suits a CPU.

    Example:
        >>> chunk_values(torch.device("cpu"), 2**18) == 2**18
        True
    """
    if device.type == "cpu":
        return on_cpu
    if device.type != "cuda":
        return BUSY_VALUES
    fitting = free_bytes(device) // (SHARE * VALUE_BYTES)
    return min(BUSY_VALUES, 1 << max(0, fitting.bit_length() - 1))


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that this process can still have: what is free, and what torch holds without using it."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


class Fetched:
    """Tensors on their way to the CPU: sent off now, waited for once, when they are read.

    Args:
        tensors: on any device.

    Example:
        >>> Fetched([torch.ones(2)]).read()
        [tensor([1., 1.])]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        # Only CUDA says when a copy has arrived; it then goes to pinned memory, beside other work.
        self._copies = [tensor.to("cpu", non_blocking=tensor.is_cuda) for tensor in tensors]
        self._arrivals = [arrival(device) for device in {tensor.device for tensor in tensors if tensor.is_cuda}]

    def read(self) -> list[Tensor]:
        """The tensors on the CPU."""
        for sent in self._arrivals:
            sent.synchronize()
        return self._copies


def arrival(device: torch.device) -> torch.cuda.Event:
    """What is reached when a GPU has done everything that was asked of it until now."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def one_ahead(items: Iterable[Item], device: torch.device) -> Iterator[Item]:
    """Items, on a GPU each one made before the one before it is handed out.

    While the GPU works on an item, what was fetched for the next one is on its way: whoever reads it need not wait
    until all work is done.
    """
    waiting = deque[Item]()
    for item in items:
        waiting.append(item)
        if device.type == "cpu" or len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


def on_cpu(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors on the CPU; their device is waited for once, not once a tensor."""
    return Fetched(tensors).read()


def moved(item: Item, move: Callable[[Tensor], Tensor]) -> Item:
    """A batch with every tensor moved: inside mappings, lists and tuples, too.

    Example:
        >>> moved({"logits": torch.zeros(2), "case_id": ["a"]}, lambda tensor: tensor + 1)
        {'logits': tensor([1., 1.]), 'case_id': ['a']}
    """
    found: Any = item
    if isinstance(item, Tensor):
        found = move(item)
    elif isinstance(item, dict):
        found = {key: moved(value, move) for key, value in item.items()}
    elif isinstance(item, list | tuple):
        found = type(item)(moved(value, move) for value in item)
    return found  # type: ignore[no-any-return]


def ahead(
    batches: Iterable[Item], device: torch.device, stays: Callable[[Item], bool] = lambda _: False
) -> Iterator[Item]:
    """Batches on a device. To a GPU each one is sent, from pinned memory, before the one before it is worked on.

    Args:
        batches: tensors, or mappings, lists and tuples of them and others.
        device: where to.
        stays: whether a batch is to be left where it is.

    Example:
        >>> list(ahead([torch.zeros(1)], torch.device("cpu")))
        [tensor([0.])]
    """
    if device.type != "cuda":
        for batch in batches:
            yield batch if stays(batch) else moved(batch, lambda tensor: tensor.to(device))
        return
    sender = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    sent = ((batch, None) if stays(batch) else _send(batch, device, sender) for batch in batches)
    yield from (_receive(*pair) for pair in one_ahead(sent, device))


def _send(batch: Item, device: torch.device, sender: torch.cuda.Stream) -> tuple[Item, torch.cuda.Event]:
    """Begin the copy of a batch to a GPU, beside its other work."""

    def send(tensor: Tensor) -> Tensor:
        return (tensor if tensor.is_cuda else tensor.pin_memory()).to(device, non_blocking=True)

    with torch.cuda.stream(sender):
        return moved(batch, send), arrival(device)


def _receive(batch: Item, arrived: torch.cuda.Event | None) -> Item:
    """Have the work that comes wait for the copy, and the memory of the copy for the work."""
    if arrived is None:
        return batch

    def receive(tensor: Tensor) -> Tensor:
        worker = torch.cuda.current_stream(tensor.device)
        worker.wait_event(arrived)
        tensor.record_stream(worker)
        return tensor

    return moved(batch, receive)
