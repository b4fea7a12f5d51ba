"""A request's way through the simulated cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from specray.simulate.agreement import Agreement, AgreementModel
from specray.simulate.arrivals import Arrival

RIGHT_TOKEN = 1  # every token of an answer
WRONG_TOKEN = 0  # what a draft guesses in its place


@dataclass(slots=True)
class Request:
    """One request: what it asks, how far it is, and when it got there.

    Its prompt's first token is its number, by which a draft that is sent the prompt knows whose
    text it continues.
    """

    number: int
    arrived_s: float
    num_prompt: int
    num_cached: int  # of the prompt, whose KV a target holds already
    num_answer: int  # tokens that it will get
    agreement: Agreement
    num_prefilled: int = 0
    num_answered: int = 0
    first_token_s: float | None = None
    finished_s: float | None = None
    tokens: "Tokens" = field(init=False)

    def __post_init__(self) -> None:
        self.num_prefilled = min(self.num_cached, self.num_prompt - 1)  # the last is computed
        self.tokens = Tokens(self)

    @property
    def num_tokens(self) -> int:
        """Its length by now: prompt and answer."""
        return self.num_prompt + self.num_answered

    @property
    def is_prefilled(self) -> bool:
        """Whether its next step is a decode step."""
        return self.num_prefilled >= self.num_prompt

    @property
    def is_finished(self) -> bool:
        """Whether it has all its tokens."""
        return self.num_answered >= self.num_answer

    def num_proposed(self, length: int, depth: int) -> int:
        """Tokens that a draft guesses behind so long a text, of at most `depth`."""
        return self._at(self.agreement.num_proposed, length, depth)

    def num_right(self, length: int, depth: int) -> int:
        """How many of `depth` guesses behind so long a text are accepted."""
        return self._at(self.agreement.num_right, length, depth)

    def _at(self, counts: np.ndarray, length: int, depth: int) -> int:  # [answer]
        place = length - self.num_prompt
        return min(depth, int(counts[place])) if 0 <= place < len(counts) else 0


class Tokens:
    """The tokens of a request, as `target.session.TokenSequence` shows them."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __len__(self) -> int:
        return self._request.num_tokens

    def __getitem__(self, index: slice, /) -> list[int]:
        start, stop, _ = index.indices(len(self))
        ids = [RIGHT_TOKEN] * max(0, stop - start)
        if ids and start == 0:
            ids[0] = self._request.number
        return ids


def make_requests(
    arrivals: Sequence[Arrival], agreement: AgreementModel, num_cached: int, seed: int
) -> list[Request]:
    """The requests of a run; equal seeds give equal texts, whatever else differs.

    Args:
        arrivals: when, and how long.
        agreement: how far proposals for them agree.
        num_cached: tokens of each prompt that targets hold already, as a shared system prompt.
        seed: of the texts.
    """
    return [
        Request(
            number,
            arrival.at_s,
            arrival.num_prompt_tokens,
            num_cached,
            arrival.num_answer_tokens,
            agreement.draw(np.random.default_rng([seed, 2, number]), arrival.num_answer_tokens),
        )
        for number, arrival in enumerate(arrivals)
    ]
