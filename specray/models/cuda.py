"""What small models need on a GPU, whose kernels take less time than the CPU's part in them."""

from collections.abc import Callable

import torch

_NUM_WARM_UPS = 2  # libraries allocate on first use, which no recording may hold

Replay = Callable[[], None]
Recorder = Callable[[Callable[[], None]], Replay]
"""Records a computation on tensors that outlive it; returns what repeats it."""


def prepare(device: torch.device | str) -> None:
    """Sets up a process for a model that meets another length in each pass; nothing for a CPU.

    cuDNN's attention, which PyTorch prefers on an H200, takes some 50 ms to plan for a new shape.
    """
    if torch.device(device).type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


class CudaGraphs:
    """Computations that are recorded once and replayed, on the current device.

    Recordings share their memory, so they run one at a time.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        """Takes the generator that the computations draw with, if it is not the device's own."""
        self._generator = generator
        self._pool: tuple[int, int] | None = None
        self._stream: torch.cuda.Stream | None = None  # one: libraries keep memory for each

    def record(self, run: Callable[[], None]) -> Replay:
        """See `Recorder`; https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.

        Raises:
            RuntimeError: it can't be recorded, as it waits for the device, say.
        """
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self._stream = stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        if self._generator is not None:  # else each replay drew the numbers of the recording again
            graph.register_generator_state(self._generator)
        try:
            with torch.cuda.stream(stream):  # left again whatever happens to the recording
                for _ in range(_NUM_WARM_UPS):
                    run()
                # Other threads of the process may use the device meanwhile.
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
                ):
                    run()
        finally:  # who goes on without it uses the same tensors
            torch.cuda.current_stream().wait_stream(stream)
        return graph.replay
