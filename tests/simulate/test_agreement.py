import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specray.errors import InvalidConfigError
from specray.simulate.agreement import (
    Agreement,
    ByPlace,
    Mixture,
    Recorded,
    bundled_records,
    read_agreement,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_rates_hold_by_place_and_the_last_one_beyond() -> None:
    found = ByPlace((0.8, 0.5)).draw(rng(), 40_000)
    survivals = [float(np.mean(found.num_right >= depth)) for depth in (1, 2, 3, 4)]

    assert survivals == pytest.approx([0.8, 0.4, 0.2, 0.1], abs=0.01)
    assert (found.num_right <= found.num_proposed).all()


def test_a_record_is_gone_through_again_by_longer_answers() -> None:
    record = Recorded((Agreement(np.array([3, 0, 1]), np.array([2, 0, 1])),))

    found = record.draw(rng(), 7)

    assert found.num_right.tolist() == [2, 0, 1, 2, 0, 1, 2]
    assert found.num_proposed.tolist() == [3, 0, 1, 3, 0, 1, 3]


def test_a_mixture_draws_its_parts_by_their_shares() -> None:
    mixture = Mixture((ByPlace((1.0,)), ByPlace((0.0,))), (0.25, 0.75))
    generator = rng()
    drawn = [mixture.draw(generator, 1).num_right[0] > 0 for _ in range(4000)]

    assert np.mean(drawn) == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("name", bundled_records())
@pytest.mark.parametrize("kind", ["", "/chat", "/code", "/summarising"])
def test_bundled_records_can_be_read_by_kind(name: str, kind: str) -> None:
    model, generator = read_agreement(f"bundled:{name}{kind}"), rng()
    found = [model.draw(generator, 200) for _ in range(30)]

    assert any(answer.num_right.any() for answer in found)
    assert all((answer.num_right <= answer.num_proposed).all() for answer in found)


def test_the_bundled_look_ups_bring_what_the_readme_says() -> None:
    # README, "Choosing a draft": 1.50 tokens per step at depth 5 for greedy answers.
    path = Path("specray/simulate/records/smollm2-lookup-greedy.json")
    tokens = steps = 0
    for entry in json.loads(path.read_text())["answers"]:
        place = 1
        while place < len(entry["right"]):
            advance = min(5, entry["right"][place]) + 1
            tokens += min(advance, len(entry["right"]) - place)
            steps, place = steps + 1, place + advance

    assert tokens / steps == pytest.approx(1.50, abs=0.01)


def test_what_users_write_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"rates": {"a": [0.5], "b": [0.25, 1]}}))

    assert read_agreement("0.7") == ByPlace((0.7,))
    assert read_agreement("0.8,0.6") == ByPlace((0.8, 0.6))
    assert read_agreement(str(path)) == Mixture((ByPlace((0.5,)), ByPlace((0.25, 1.0))), (0.5, 0.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.2", "between 0 and 1"),
        ("0.5,nan", "between 0 and 1"),
        (",".join(["0.5"] * 65), "up to 64 rates"),
        ("nowhere.json", "nowhere.json is neither a rate nor a record"),
        ("bundled:other", "'other'; there are smollm2-draft-greedy"),
        ("bundled:smollm2-draft-greedy/poems", "no kind 'poems'; it has chat"),
    ],
)
def test_what_is_meant_otherwise_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        read_agreement(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "neither `answers` nor `rates`"),
        ({"rates": {"a": []}}, "rates.a must be a list"),
        ({"rates": {"a": [0.5, 2]}}, "rates.a must be between 0 and 1"),
        ({"answers": 3}, "answers must be a list"),
        ({"answers": [{"proposed": [1]}]}, r"answers\[0\] has no `kind`"),
        ({"answers": [{"kind": "a", "proposed": [1], "right": [2]}]}, "not exceed"),
        ({"answers": [{"kind": "a", "proposed": [1], "right": [1, 1]}]}, "as long as"),
        ({"answers": [{"kind": "a", "proposed": [-1], "right": [0]}]}, "list of counts"),
    ],
)
def test_a_faulty_record_is_named(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))

    with pytest.raises(InvalidConfigError, match=message):
        read_agreement(str(path))
