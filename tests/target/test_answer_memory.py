from specray.target.answer_memory import END, MARGIN, AnswerMemory


def remembered(memory: AnswerMemory, tenant: str = "a") -> list[list[int]]:
    """The answers, the oldest first."""
    text = memory.text(tenant).tolist()
    assert text[:MARGIN] == [END] * len(text[:MARGIN])
    answers: list[list[int]] = [[]]
    for token_id in text[MARGIN:]:
        if token_id == END:
            answers.append([])
        else:
            answers[-1].append(token_id)
    assert answers.pop() == []  # each answer has an end
    return answers


def test_answers_are_kept_apart() -> None:
    memory = AnswerMemory(100)
    memory.add("a", [1, 2])
    memory.add("a", [3])
    memory.add("a", [])
    assert remembered(memory) == [[1, 2], [3]]


def test_each_tenant_has_its_own_unless_told_otherwise() -> None:
    for is_common in (False, True):
        memory = AnswerMemory(100, is_common=is_common)
        memory.add("a", [1, 2])
        memory.add("b", [3, 4])
        assert remembered(memory, "b") == ([[1, 2], [3, 4]] if is_common else [[3, 4]])
        assert remembered(memory, "c") == (remembered(memory, "a") if is_common else [])


def test_of_a_single_tenant_the_latest_are_kept() -> None:
    memory = AnswerMemory(40)
    for start in range(0, 1000, 5):
        memory.add("a", range(start, start + 5))
        assert len(memory) <= 40
        assert remembered(memory)[-1] == [*range(start, start + 5)]
    assert len(memory) >= 20


def test_of_several_those_that_were_answered_lately() -> None:
    memory = AnswerMemory(40)
    for tenant in ("a", "b", "a", "c", "a", "d"):
        memory.add(tenant, range(9))
        assert len(memory) <= 40
    assert not remembered(memory, "b")
    assert remembered(memory, "a")
    assert remembered(memory, "d") == [[*range(9)]]


def test_a_long_answer_is_cut() -> None:
    memory = AnswerMemory(40)
    memory.add("a", range(100))
    assert remembered(memory) == [[*range(19)]]


def test_a_memory_that_is_too_small_for_anything_holds_nothing_for_long() -> None:
    for size in (1, 2, 3):
        memory = AnswerMemory(size)
        for _ in range(10):
            memory.add("a", range(100))
            assert len(memory) <= size
