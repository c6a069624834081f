"""A mirror of pinned memory in the memory of a CUDA or HIP device."""

from __future__ import annotations

import torch

from handlers.engines.mirror import Mirror


class DeviceCopy(Mirror):
    """Copies on a stream of its own. ``host`` are the bytes of the pinned memory."""

    def __init__(self, host: torch.Tensor, device: torch.device) -> None:
        super().__init__(host.data_ptr())
        self._here = host
        self._there = torch.empty_like(host, device=device)
        self._stream = torch.cuda.Stream(device)

    def copy(self, start: int, end: int) -> None:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._there[start:end].copy_(self._here[start:end], non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def copy_of(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> torch.Tensor:
        """The device's copy of a tensor, for use on ``stream``; the tensor itself where there is none."""
        found = self.find(tensor.data_ptr(), tensor.nbytes)
        if found is None:
            return tensor
        start, event = found
        assert isinstance(event, torch.cuda.Event)
        stream.wait_event(event)
        return self._there[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
