"""The student while it learns: forward over answers, loss and gradients, in bounded memory."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from specray.distill.examples import Batch, Head, make_batch
from specray.distill.losses import Loss, Targets
from specray.distill.prefix import PrefixStore
from specray.distill.shards import Answers
from specray.distill.student import layers_of

logger = logging.getLogger(__name__)

_PLAIN = "the training goes on without compiled layers: %s"
_LOGITS_BYTES = {"cpu": 1 << 25, "cuda": 1 << 28}  # that are held at once


class Texts(NamedTuple):
    """Answers, with what the shared prefix makes of them if there is one."""

    answers: Answers
    prefix: PrefixStore | None = None


class Learner:
    """Only the layers learn; embeddings, norm and head are the target's."""

    def __init__(
        self,
        student: Any,
        head: Head,
        loss: Loss,
        autocast: torch.dtype | None,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        """Prepares a student for training.

        Args:
            student: without its shared prefix, if the texts come with the prefix's output.
            head: the tokens that it may say.
            loss: what is minimised.
            autocast: data type of the matrix products; None for the student's own.
            backend: what compiles, as `torch.compile` takes it.
        """
        for parameter in student.parameters():
            parameter.requires_grad_(False)
        self.layers = layers_of(student)
        for parameter in self.layers.parameters():
            parameter.requires_grad_(True)
        self._student = student.train()
        self._autocast = autocast
        self._loss = loss
        weight = student.get_output_embeddings().weight.detach()
        weight = weight[torch.from_numpy(head.token_ids).to(weight.device)]
        self._weight = weight if autocast is None else weight.to(autocast)
        self._head = head
        self._backend = backend
        self._is_compiled = False

    def compile(self) -> None:
        """From here on the layers learn compiled; layers of one kind share what that takes."""
        logger.info("the layers are compiled with the next batches, which takes about a minute")
        try:
            for layer in self.layers:
                layer.compile(dynamic=True, backend=self._backend)
        except RuntimeError as error:  # of Python versions that torch can't compile for
            logger.warning(_PLAIN, error)
            return
        self._is_compiled = True

    def batch(self, texts: Texts, indices: Sequence[int]) -> Batch:
        """Some answers as one batch."""
        return make_batch([texts.answers[i] for i in indices], self._head)

    def hidden(self, texts: Texts, indices: Sequence[int], batch: Batch) -> Tensor:
        """What the student's head is given, [answer tokens, hidden]."""
        device = self._student.device
        inputs: dict[str, Tensor] = {"input_ids": batch.token_ids.to(device)}
        if texts.prefix is not None:
            outputs = texts.prefix.read(indices, batch.token_ids.shape[1])
            inputs = {"inputs_embeds": outputs.to(device, self._student.dtype)}
        with torch.autocast(device.type, self._autocast, enabled=self._autocast is not None):
            states = self._student.base_model(**inputs, use_cache=False).last_hidden_state
        return states.flatten(0, 1)[batch.positions.to(device)]

    def logits(self, hidden: Tensor) -> Tensor:  # [positions, columns], float32
        """What the student says."""
        return (hidden.to(self._weight.dtype) @ self._weight.T).float()

    def accumulate(self, texts: Texts, indices: Sequence[int]) -> tuple[float, int]:
        """Leaves the gradients of the mean loss; returns it and the number of answer tokens."""
        if self._is_compiled:
            try:
                return self._accumulate(texts, indices)
            except TorchDynamoException as error:  # whatever is missing to compile with
                reason = " ".join(str(error).partition("\n\n")[0].split())
                logger.warning(_PLAIN, reason)
                self._is_compiled = False
                self.layers.zero_grad()  # it may have been in the backward pass
        with torch.compiler.set_stance("force_eager"):
            return self._accumulate(texts, indices)

    def _accumulate(self, texts: Texts, indices: Sequence[int]) -> tuple[float, int]:
        batch = self.batch(texts, indices)
        hidden = self.hidden(texts, indices, batch)
        leaf = hidden.detach().requires_grad_(True)
        total, count = 0.0, len(leaf)
        rows = max(1, _LOGITS_BYTES[leaf.device.type] // (4 * len(self._weight)))
        for first in range(0, count, rows):
            part = slice(first, first + rows)
            targets = Targets(*(field[part].to(leaf.device) for field in batch.targets))
            loss = self._loss(self.logits(leaf[part]), targets).sum() / count
            loss.backward()
            total += loss.item()
        hidden.backward(leaf.grad)
        return total, count
