"""What a batch leaves in the layers, whole or in parts, compiled or not."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specray.distill import learner
from specray.distill.evaluation import evaluate
from specray.distill.learner import Learner, Texts
from specray.distill.shards import Answer
from tests.distill.conftest import make_learner, run_as_it_is

pytestmark = [
    pytest.mark.usefixtures("nothing_compiled"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch, to itself
]

# Of answers that grow longer one by one: all widths differ.
BATCHES = ([0, 1, 2], [3, 4, 5, 6], [7, 8], [9, 10, 11])


def test_logits_are_held_in_parts_that_add_up(
    target: Path, answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_learner(target, answers)
    logits, rows, found = made.logits, [], []
    monkeypatch.setattr(made, "logits", lambda hidden: rows.append(len(hidden)) or logits(hidden))
    for num_rows in (1000, 7):
        rows.clear()
        monkeypatch.setattr(learner, "_LOGITS_BYTES", {"cpu": 4 * len(made._weight) * num_rows})
        made.layers.zero_grad()
        loss, count = made.accumulate(Texts(answers), range(len(answers)))
        found.append((loss, count, [weight.grad.clone() for weight in made.layers.parameters()]))

    (whole_loss, whole_count, whole), (loss, count, parts) = found
    assert max(rows) == 7
    assert sum(rows) == count == whole_count
    assert loss == pytest.approx(whole_loss, rel=1e-5)
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class _Embedded:
    """A shared prefix of no layers."""

    def __init__(self, learner: Learner, answers: Sequence[Answer]) -> None:
        self._learner = learner
        self._answers = answers

    def read(self, indices: Sequence[int], width: int) -> Tensor:
        batch = self._learner.batch(Texts(self._answers), indices)
        assert batch.token_ids.shape[1] == width
        return self._learner._student.get_input_embeddings()(batch.token_ids)


def grads_of(made: Learner, texts: Texts, indices: Sequence[int]) -> list[Tensor]:
    made.layers.zero_grad()
    made.accumulate(texts, indices)
    return [weight.grad.clone() for weight in made.layers.parameters()]


@pytest.mark.parametrize("has_prefix", [False, True])
def test_layers_are_compiled_once_for_batches_of_all_widths(
    target: Path, answers: list[Answer], has_prefix: bool
) -> None:
    graphs = []

    def note(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return run_as_it_is(graph, inputs)

    plain, compiled = make_learner(target, answers), make_learner(target, answers, note)
    texts: Any = Texts(answers, _Embedded(plain, answers) if has_prefix else None)
    compiled.compile()

    for indices in BATCHES:
        wanted = grads_of(plain, texts, indices)
        torch.testing.assert_close(grads_of(compiled, texts, indices), wanted)
    assert len(graphs) == 2  # the first layer's input needs no gradient

    for index in range(4):
        compiled.accumulate(texts, [index])
    assert len(graphs) == 4  # torch takes a single row for a kind of its own

    assert evaluate(compiled, texts) == pytest.approx(evaluate(plain, texts))
    assert len(graphs) == 4


def test_a_batch_whose_compiling_fails_leaves_its_gradients_once(
    target: Path, answers: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch compiles the way back only there if its first attempt failed."""
    plain, failing = make_learner(target, answers), make_learner(target, answers, run_as_it_is)
    failing.compile()
    accumulate, calls = failing._accumulate, []

    def fail_at_the_end(*args: Any) -> Any:
        calls.append(args)
        result = accumulate(*args)
        if len(calls) == 1:
            raise torch._dynamo.exc.TorchDynamoException("too late")
        return result

    monkeypatch.setattr(failing, "_accumulate", fail_at_the_end)

    grads = grads_of(failing, Texts(answers), [0, 1, 2])

    assert len(calls) == 2
    torch.testing.assert_close(grads, grads_of(plain, Texts(answers), [0, 1, 2]))


def test_layers_learn_as_they_are_where_torch_can_not_compile(
    target: Path,
    answers: list[Answer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain, made = make_learner(target, answers), make_learner(target, answers, run_as_it_is)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("torch.compile is not supported on Python 3.99+")

    monkeypatch.setattr(torch.nn.Module, "compile", refuse)
    made.compile()

    assert "without compiled layers: torch.compile is not supported" in caplog.text
    grads = grads_of(made, Texts(answers), [0, 1, 2])
    assert all(map(torch.equal, grads, grads_of(plain, Texts(answers), [0, 1, 2])))


@pytest.mark.e2e  # compiles for some twenty seconds
def test_compiled_layers_learn_the_same(target: Path, answers: list[Answer]) -> None:
    plain, compiled = make_learner(target, answers), make_learner(target, answers, "inductor")
    names = compiled.layers.state_dict().keys()
    compiled.compile()

    for indices in BATCHES:
        torch.testing.assert_close(
            grads_of(compiled, Texts(answers), indices),
            grads_of(plain, Texts(answers), indices),
            rtol=1e-3,
            atol=1e-5,
        )
    assert compiled._is_compiled
    assert compiled.layers.state_dict().keys() == names
