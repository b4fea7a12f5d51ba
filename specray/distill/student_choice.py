"""Step (c): the student is chosen, and noted; later steps load it from the note."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specray.distill import layer_search
from specray.distill.engines import fast_dtype, load_model
from specray.distill.examples import choose_head
from specray.distill.prompts import TRAIN
from specray.distill.settings import DistillSettings
from specray.distill.shards import find_shards, load_shard
from specray.distill.student import cut, layers_of
from specray.distill.work import WorkFolder, write_json
from specray.errors import InvalidConfigError
from specray.models.draft_layers import by_layer, holds_layers, read_layers
from specray.models.quantised import dequantise, quantise
from specray.models.sources import resolve
from specray.models.tokenizers import first_difference, read_tokens

_PROBE_ROWS, _PROBE_WIDTH = 4, 96  # tokens that layers are chosen by: minutes on one core
_PROBE_SHARDS, _PER_SHARD = 8, 16  # answers of which these are; a shard's prompts are of one length


def choose_student(settings: DistillSettings, work: WorkFolder) -> None:
    """Notes which layers the student has; searches for them if none are named.

    Raises:
        InvalidConfigError: there are no answers to choose by, or the student has other tokens, or
            --from and --layers contradict each other.
    """
    if settings.student is not None:
        _note(work, {"student": _check_student(settings.target, settings.student)})
    elif settings.start is not None:
        choice = _choice_of_before(settings.start)
        if settings.layers is not None and list(settings.layers) != choice.get("layers"):
            raise InvalidConfigError(
                f"--layers {list(settings.layers)}: --from {settings.start} has "
                f"{choice.get('layers', choice.get('student'))}; leave --layers out"
            )
        _note(work, choice)
    elif settings.layers is not None:
        _note(work, {"layers": list(settings.layers)})
    elif not work.student.is_file():
        rounds = _search(settings, work)
        notes = [candidate._asdict() for candidate in rounds]
        write_json(work.student, {"layers": list(rounds[-1].layers), "rounds": notes})


def chosen_layers(work: WorkFolder) -> list[int]:
    """Which of the target's layers the student has; none if it is a model of its own.

    Raises:
        InvalidConfigError: nothing was chosen yet.
    """
    return list(_choice(work).get("layers", []))


def load_student(settings: DistillSettings, work: WorkFolder) -> Any:
    """The student as it is before training.

    Raises:
        InvalidConfigError: nothing was chosen yet, or a model can't be loaded.
    """
    choice = _choice(work)
    if "student" in choice:
        return load_model(choice["student"], settings.device, torch.float32)
    model = load_model(settings.target, settings.device, torch.float32)
    return cut(model, choice["layers"])


def load_trained(settings: DistillSettings, work: WorkFolder) -> Any:
    """The student with its best layers, rounded as they will be if only they are exported."""
    model = load_student(settings, work)
    state = trained_layers(work)
    if settings.layers_only:
        state = {index: dequantise(quantise(weights)) for index, weights in state.items()}
    for layer, weights in zip(layers_of(model)[-len(state) :], state.values(), strict=True):
        layer.load_state_dict(weights)
    return model.eval()


def begin_from(start: Path, layers: torch.nn.ModuleList) -> None:
    """Sets the layers that are to be trained to those that another distillation has trained.

    Where that one shared more of the target's first layers, they begin as the target's here.

    Args:
        start: the other's work folder, or the draft it has made with --layers-only.
        layers: without the shared prefix.

    Raises:
        InvalidConfigError: nothing was trained there, or other layers were.
    """
    trained = _layers_of_before(start)
    try:
        for layer, weights in zip(layers[-len(trained) :], trained.values(), strict=True):
            layer.load_state_dict(weights)
    except (ValueError, RuntimeError) as error:
        raise InvalidConfigError(
            f"--from {start}: {len(trained)} layers were trained there that don't fit the "
            f"{len(layers)} to be trained here; give the same target and no larger --num-shared"
        ) from error


def trained_layers(work: WorkFolder) -> dict[int, dict[str, Tensor]]:
    """The weights of each layer that was trained, counted from the end of the shared prefix.

    Raises:
        InvalidConfigError: there was no training yet.
    """
    return by_layer(load_file(work.find_best()))


def _check_student(target: str, student: str) -> str:
    """Where a model that is to be trained is; raises InvalidConfigError if its tokens differ."""
    path = resolve(student)
    difference = first_difference(read_tokens(target).ids, read_tokens(path).ids)
    if difference is not None:
        raise InvalidConfigError(
            f"--student {student}: can't draft for {target}: {difference}; name a model with the "
            "target's tokenizer, or leave --student out to train some of the target's own layers"
        )
    return path


def _note(work: WorkFolder, choice: dict[str, Any]) -> None:
    """Notes a choice; raises InvalidConfigError if another student was trained here."""
    before = _choice(work) if work.student.is_file() else choice
    name = "student" if "student" in before else "layers"
    if choice.get(name) != before[name]:
        if work.is_trained:
            raise InvalidConfigError(
                f"--work {work.path}: a student with {name} {before[name]} was trained there; name "
                "another folder"
            )
        # What a training left that was killed before its first checkpoint is of other layers.
        for path in (work.head, *work.training.glob("*.npy")):
            path.unlink(missing_ok=True)
    write_json(work.student, choice)


def _choice(work: WorkFolder) -> dict[str, Any]:
    if not work.student.is_file():
        raise InvalidConfigError(
            f"--work {work.path}: no student was chosen; run `specray distill` with --only student"
        )
    return json.loads(work.student.read_text("utf-8"))


def _choice_of_before(start: Path) -> dict[str, Any]:
    if holds_layers(start):
        return {"layers": list(read_layers(start).cut_from)}
    work = WorkFolder(start)
    if not work.student.is_file():
        raise InvalidConfigError(
            f"--from {start}: neither a work folder in which a student was chosen nor a draft that "
            "was made with --layers-only"
        )
    return _choice(work)


def _layers_of_before(start: Path) -> dict[int, dict[str, Tensor]]:
    if holds_layers(start):
        return read_layers(start).trained
    return trained_layers(WorkFolder(start))


def _search(settings: DistillSettings, work: WorkFolder) -> list[layer_search.Candidate]:
    shards = find_shards(work, TRAIN)
    if not shards:
        raise InvalidConfigError(
            f"--work {work.path}: there are no answers to choose layers by; run `specray distill` "
            "with --only answers, or name --layers"
        )
    dtype = fast_dtype(settings.device) or torch.float32
    model = load_model(settings.target, settings.device, dtype)
    num_layers = len(layers_of(model))
    if settings.num_layers >= num_layers:
        raise InvalidConfigError(
            f"--num-layers {settings.num_layers}: the target has {num_layers}; keep fewer, or name "
            "a smaller model with --student"
        )
    answers = [a for shard in shards[:_PROBE_SHARDS] for a in islice(load_shard(shard), _PER_SHARD)]
    texts = [[*a.prompt_ids.tolist(), *a.token_ids.tolist()] for a in answers]
    longest = sorted(texts, key=len)[-_PROBE_ROWS:]
    width = min(_PROBE_WIDTH, len(longest[0]))
    token_ids = torch.tensor([text[-width:] for text in longest], device=settings.device)
    head = choose_head(answers, model.config.vocab_size, settings.head_tokens)
    weight = model.get_output_embeddings().weight[torch.from_numpy(head.token_ids)]
    probe = layer_search.make_probe(model, token_ids, weight)
    fixed = range(min(settings.num_shared, settings.num_layers - 1))
    return layer_search.search(model, probe, weight, settings.num_layers, fixed)
