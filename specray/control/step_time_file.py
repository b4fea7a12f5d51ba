"""What was learnt about step times, kept for the next start on the same hardware."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path

from specray.control.hardware import HardwareProfile
from specray.control.step_time import StepTimeModel

logger = logging.getLogger(__name__)

_TRUST = 0.25  # of what an earlier run learnt, against what this one will
_STEPS_PER_SAVE = 1000
_SPOILT = (ValueError, KeyError, TypeError, AttributeError)  # what a spoilt file may raise


class StepTimeFile:
    """Loads a model at start and saves it now and then; its name says what it holds for."""

    def __init__(self, key: Mapping[str, str], folder: Path | None = None) -> None:
        """Takes what step times depend on: model, hardware, engine options."""
        digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
        folder = folder or user_cache_path("specray") / "step-times"
        self._path = folder / f"{digest[:24]}.json"
        self._key = dict(key)
        self._num_steps = 0
        self._writer: threading.Thread | None = None

    def read_hardware(self) -> HardwareProfile | None:
        """What the prior of the file's model knew of the hardware; None without one of use."""
        try:
            state = json.loads(self._path.read_text())["model"]["hardware"]
            return HardwareProfile.from_state(state) if state is not None else None
        except (OSError, *_SPOILT):
            return None  # `load` says why

    def load(self, model: StepTimeModel) -> None:
        """Let the model go on from the file; one that can't be used is passed over, loudly."""
        try:
            model.restore(json.loads(self._path.read_text())["model"], _TRUST)
        except FileNotFoundError:
            return
        except (OSError, *_SPOILT) as error:
            logger.warning("step times in %s are of no use, so learnt anew: %s", self._path, error)

    def note_step(self, model: StepTimeModel) -> None:
        """Save after every so many steps, on a thread of its own: no step waits for a disk."""
        self._num_steps += 1
        if self._num_steps % _STEPS_PER_SAVE or (self._writer and self._writer.is_alive()):
            return
        self._writer = threading.Thread(target=self._write, args=(self._text(model),), daemon=True)
        self._writer.start()

    def save(self, model: StepTimeModel) -> None:
        """Write the file now, in one piece; a disk that refuses costs a warning.

        Not of a model that knows nothing: the next start could make nothing of it.
        """
        if self._writer is not None:
            self._writer.join()
        if not model.is_blank:
            self._write(self._text(model))

    def _text(self, model: StepTimeModel) -> str:
        return json.dumps({"key": self._key, "model": model.state()})

    def _write(self, text: str) -> None:
        partial = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text)
            partial.replace(self._path)
        except OSError as error:
            logger.warning("step times can't be kept in %s: %s", self._path, error)
