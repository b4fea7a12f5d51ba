import json
from pathlib import Path

from specray.draft.timing import DraftTimer
from specray.models.draft_layers import DRAFT_FILE
from tests.models.test_agreement import save_model


def test_a_draft_takes_its_time_for_every_prompt_also_one_longer_than_it_can_hold(
    tmp_path: Path,
) -> None:
    timer = DraftTimer(save_model(tmp_path / "draft", seed=0))

    times = [timer.token_s(prompt) for prompt in ([5], [5, 6, 7] * 10, [5, 6, 7] * 1000)]

    assert all(0 < seconds < 1 for seconds in times)


def test_a_draft_tells_which_tokens_it_proposes(tmp_path: Path) -> None:
    draft = save_model(tmp_path / "draft", seed=0)
    assert DraftTimer(draft).head_token_ids is None

    (tmp_path / "draft" / DRAFT_FILE).write_text(json.dumps({"head_token_ids": [7, 3]}))
    token_ids = DraftTimer(draft).head_token_ids
    assert token_ids is not None
    assert token_ids.tolist() == [7, 3]
