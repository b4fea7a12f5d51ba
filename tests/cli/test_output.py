from specray.cli.output import columns, markdown

ROWS = [("pool", "n"), ("draft", "12"), ("router", "")]


def test_numbers_end_below_each_other_and_words_begin_so() -> None:
    assert columns(ROWS) == "  pool   n\n draft  12\nrouter"
    assert columns(ROWS, is_left=True) == "pool    n\ndraft   12\nrouter"


def test_a_table_for_markdown_has_its_headings_apart() -> None:
    assert markdown(ROWS) == "| pool | n |\n|---|---|\n| draft | 12 |\n| router |  |"
