import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError
from ray.llm._internal.serve.core.configs.openai_api_models import OpenAIHTTPException

from specray.serve.explanation import Explanation


class Controller:
    """Counts how often it is asked; answers the next of what it was given."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.num_asked = 0
        self.explain = SimpleNamespace(remote=self._explain)

    async def _explain(self) -> Any:
        self.num_asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_however_many_ask_the_controller_is_asked_twice_a_second() -> None:
    controller = Controller({"a": 1}, {"a": 2})
    now = 0.0

    async def ask() -> tuple[list[Any], Any]:
        nonlocal now
        explanation = Explanation(controller, clock=lambda: now)  # type: ignore[arg-type]
        first = await asyncio.gather(*(explanation.read() for _ in range(20)))
        now = 0.6
        return first, await explanation.read()

    first, second = asyncio.run(ask())
    assert first == [{"a": 1}] * 20
    assert second == {"a": 2}
    assert controller.num_asked == 2


@pytest.mark.parametrize("error", [RayActorError(), TimeoutError()], ids=repr)
def test_while_the_controller_is_away_one_is_told_to_ask_later(error: Exception) -> None:
    controller = Controller(error, {"a": 1})

    async def ask() -> Any:
        explanation = Explanation(controller)  # type: ignore[arg-type]
        with pytest.raises(OpenAIHTTPException) as info:
            await explanation.read()
        assert info.value.status_code == 503
        assert "being replaced" in info.value.message
        return await explanation.read()

    assert asyncio.run(ask()) == {"a": 1}
