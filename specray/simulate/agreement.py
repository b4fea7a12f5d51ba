"""What the models would have said: at each place of an answer, how far a proposal would agree.

A request's outcomes are fixed by its seed and the place alone, whatever is verified and when, so
that every policy meets the same texts and differences between policies are not luck.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from specray.config import MAX_DEPTH
from specray.errors import InvalidConfigError

Counts = NDArray[np.int64]


class Agreement(NamedTuple):
    """One answer, by place: index i is about a proposal that extends its first i tokens."""

    num_proposed: Counts  # [answer], tokens that the draft would guess, however deep it may
    num_right: Counts  # [answer], of them, those before the first that is rejected


class AgreementModel(Protocol):
    """Where answers' agreements come from."""

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Agreement:
        """The agreements of one answer of so many tokens."""


@dataclass(frozen=True, slots=True)
class ByPlace:
    """Each token of a chain is right with a probability of its place, given those before it.

    The last rate holds for all places beyond; a single rate is the constant acceptance of the
    literature.
    """

    rates: tuple[float, ...]

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Agreement:
        """See `AgreementModel.draw`."""
        rates = np.array([*self.rates, *[self.rates[-1]] * (MAX_DEPTH - len(self.rates))])
        survivals = np.cumprod(rates[:MAX_DEPTH])  # [depth]
        luck = rng.random(num_tokens)
        num_right = np.count_nonzero(luck[:, None] < survivals[None, :], axis=1)
        return Agreement(np.full(num_tokens, MAX_DEPTH, np.int64), np.asarray(num_right))


@dataclass(frozen=True, slots=True)
class Recorded:
    """Answers that a draft was replayed over; longer ones go through the record again."""

    answers: tuple[Agreement, ...]

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Agreement:
        """See `AgreementModel.draw`."""
        answer = self.answers[int(rng.integers(len(self.answers)))]
        places = np.arange(num_tokens) % len(answer.num_right)
        return Agreement(answer.num_proposed[places], answer.num_right[places])


@dataclass(frozen=True, slots=True)
class Mixture:
    """Requests of several kinds, by their shares."""

    parts: tuple[AgreementModel, ...]
    shares: tuple[float, ...]  # adding up to 1

    def draw(self, rng: np.random.Generator, num_tokens: int) -> Agreement:
        """See `AgreementModel.draw`."""
        part = int(rng.choice(len(self.parts), p=self.shares))
        return self.parts[part].draw(rng, num_tokens)


def read_agreement(text: str) -> AgreementModel:
    """What a user names: a rate such as `0.7`, several by place, a record, or a bundled one.

    Args:
        text: `0.7`, or `0.8,0.7,0.6` by place in the chain, or the path of a record (see
            `read_record`), or `bundled:NAME[/KIND]` with NAME and KIND of `bundled_records`.

    Raises:
        InvalidConfigError: naming what is wrong with it.
    """
    if text.startswith("bundled:"):
        return _bundled(text.removeprefix("bundled:"))
    if not all(_is_number(word) for word in text.split(",")):
        return read_record(Path(text), kind=None)
    rates = tuple(float(word) for word in text.split(","))
    outside = [rate for rate in rates if not 0 <= rate <= 1]
    if outside or len(rates) > MAX_DEPTH:
        raise InvalidConfigError(
            f"acceptance: {text} must be up to {MAX_DEPTH} rates between 0 and 1"
        )
    return ByPlace(rates)


def read_record(path: Path, kind: str | None) -> AgreementModel:
    """A record: JSON with `answers`, or with `rates` by kind and place in the chain.

    Each of the answers has a `kind`, and by place what was `proposed` and how much was `right`.

    Args:
        path: made by `loadtest/record_agreement.py`.
        kind: only answers of this kind; None for all, each as likely as any other.

    Raises:
        InvalidConfigError: naming the file and the field.
    """
    place = f"acceptance: {path}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidConfigError(f"{place} is neither a rate nor a record: {error}") from None
    if not isinstance(content, dict) or not (content.get("answers") or content.get("rates")):
        raise InvalidConfigError(f"{place}: neither `answers` nor `rates` is in it")
    parts = _parts(place, content)
    if kind is not None and kind not in parts:
        names = ", ".join(sorted(parts))
        raise InvalidConfigError(f"{place} has no kind {kind!r}; it has {names}")
    if kind is not None:
        return parts[kind]
    return Mixture(tuple(parts.values()), (1 / len(parts),) * len(parts))


def _parts(place: str, content: dict[str, Any]) -> dict[str, AgreementModel]:
    if isinstance(content.get("rates"), dict):
        return {
            str(kind): _by_place(f"{place}: rates.{kind}", rates)
            for kind, rates in content["rates"].items()
        }
    entries = content.get("answers")
    if not isinstance(entries, list):
        raise InvalidConfigError(f"{place}: answers must be a list")
    found: dict[str, list[Agreement]] = {}
    for n, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
            raise InvalidConfigError(f"{place}: answers[{n}] has no `kind`")
        answer = _answer(f"{place}: answers[{n}]", entry)
        found.setdefault(entry["kind"], []).append(answer)
    return {kind: Recorded(tuple(answers)) for kind, answers in found.items()}


def _by_place(place: str, rates: object) -> ByPlace:
    if not isinstance(rates, list) or not 0 < len(rates) <= MAX_DEPTH:
        raise InvalidConfigError(f"{place} must be a list of up to {MAX_DEPTH} rates")
    if not all(isinstance(rate, int | float) and 0 <= rate <= 1 for rate in rates):
        raise InvalidConfigError(f"{place} must be between 0 and 1")
    return ByPlace(tuple(map(float, rates)))


def bundled_records() -> tuple[str, ...]:
    """The names of the records that come with specray."""
    folder = files("specray.simulate").joinpath("records")
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir()))


def _bundled(text: str) -> AgreementModel:
    name, _, kind = text.partition("/")
    if name not in bundled_records():
        raise InvalidConfigError(
            f"acceptance: no bundled record is called {name!r}; there are "
            f"{', '.join(bundled_records())}"
        )
    path = Path(str(files("specray.simulate").joinpath(f"records/{name}.json")))
    return read_record(path, kind or None)


def _answer(place: str, entry: dict[str, Any]) -> Agreement:
    proposed, right = (_column(place, entry, name) for name in ("proposed", "right"))
    if len(proposed) != len(right) or not len(right) or (right > proposed).any():
        raise InvalidConfigError(
            f"{place}: `right` must be as long as `proposed` and not exceed it"
        )
    return Agreement(proposed, right)


def _column(place: str, entry: dict[str, Any], name: str) -> Counts:
    values = entry.get(name)
    if not isinstance(values, list) or any(type(v) is not int or v < 0 for v in values):
        raise InvalidConfigError(f"{place}: {name} must be a list of counts")
    return np.array(values, np.int64)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
