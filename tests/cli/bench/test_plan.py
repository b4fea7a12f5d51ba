from dataclasses import replace

from specray.cli.bench.plan import Cell, make_plan, order


def test_the_quick_plan_fits_into_five_minutes() -> None:
    plan = make_plan(is_quick=True)
    start_s, warm_up_s, stop_s = 75, 10, 10  # of the bundled service on two cores
    expected_s = 2 * plan.num_rounds * sum(map(plan.expected_cell_s, plan.cells))

    assert plan.num_rounds >= 2
    assert start_s + warm_up_s + expected_s + stop_s < 300


def test_the_full_plan_samples_too_and_looks_longer() -> None:
    quick, full = make_plan(is_quick=True), make_plan(is_quick=False)

    assert {cell.temperature for cell in quick.cells} == {0.0}
    assert {cell.temperature for cell in full.cells} == {0.0, 1.0}
    assert full.window_s > quick.window_s
    assert full.num_answers > quick.num_answers
    assert full.num_rounds > quick.num_rounds


def test_other_temperatures_replace_the_plans() -> None:
    plan = make_plan(is_quick=True, temperatures=[0.7, 1.2])

    assert {cell.temperature for cell in plan.cells} == {0.7, 1.2}
    assert len(plan.cells) == 2 * len(make_plan(is_quick=True).cells)


def test_another_number_of_rounds_changes_nothing_else() -> None:
    plan = make_plan(is_quick=True, num_rounds=7)

    assert plan.num_rounds == 7
    assert replace(plan, num_rounds=2) == make_plan(is_quick=True)


def test_systems_take_turns_in_going_first() -> None:
    assert [order(index)[0] for index in range(3)] == ["off", "specray", "off"]


def test_each_round_goes_on_with_other_prompts() -> None:
    plan = make_plan(is_quick=True)

    assert plan.first_prompt(Cell("chat", 1, 0.0), 1) == plan.num_answers
    assert plan.first_prompt(Cell("chat", 8, 0.0), 1) == 8
