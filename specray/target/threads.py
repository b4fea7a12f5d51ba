"""Which core each of the engine core's threads runs on, for targets on the CPU."""

import os
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any


def bound_to_cores(vllm_config: Any) -> AbstractContextManager[None]:
    """Let the process that is started inside bind its OpenMP threads as vLLM would a worker's.

    vLLM 0.29 binds (`VLLM_CPU_OMP_THREADS_BIND`) only workers with a process of their own.
    """
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    binding: AbstractContextManager[None] = OMPProcessManager(vllm_config).configure_omp_envs(0, 0)
    return binding


def clear_the_models_core(free: Collection[int] = ()) -> None:
    """Move the other threads of this process off the core that its main thread computes on.

    Threads inherit the binding of the thread that starts them, so vLLM's own input and output
    threads would compete with the model for one core while others idle. They go to the others that
    the replica, which started this process, may use itself. Does nothing unless the main thread is
    bound and another core is left.

    Args:
        free: Native ids of threads that may run on any core, the model's too. A thread that runs
            Python in short bursts holds the interpreter's lock in them: on cores that others keep
            busy it has to wait for its turn, lock in hand, and the model with it.
    """
    main = os.getpid()
    bound = os.sched_getaffinity(main)
    others = os.sched_getaffinity(os.getppid()) - bound
    if not others:
        return
    for thread in _threads():
        with suppress(OSError):  # it has ended
            if thread != main and os.sched_getaffinity(thread) == bound:
                os.sched_setaffinity(thread, others | bound if thread in free else others)


def _threads() -> Iterator[int]:
    return (int(task.name) for task in Path("/proc/self/task").iterdir())
