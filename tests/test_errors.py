"""Values and names in messages are short."""

from bertworks.errors import show_names, show_value


def test_a_value_is_shown_as_it_is_written_but_at_most_80_characters():
    assert show_value("a\nb") == "'a\\nb'"
    assert show_value([1, None]) == "[1, None]"
    assert show_value("x" * 100) == "'" + "x" * 78 + "…"


def test_an_integer_without_a_repr_is_described():
    assert show_value(16**5_000) == "a value that is too long to show"


def test_at_most_twenty_names_are_listed():
    assert show_names(["a", "b"]) == "'a', 'b'"
    assert show_names(f"c{number}" for number in range(20)).endswith("'c18', 'c19'")
    assert show_names(f"c{number}" for number in range(1_057)).endswith("'c18', 'c19' and 1,037 more")
