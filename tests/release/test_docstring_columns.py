"""Docstrings with aligned columns: meanings by name, and Markdown lists."""

from docstring_columns import as_markdown, meanings_of

DOCSTRING = """How a run is made.

    seed            of everything
                    that is random
    steps, epochs   how long
    activation_checkpointing
                    less memory

    A last word.
    """


def test_names_of_one_line_share_their_meaning_and_lines_continue():
    assert meanings_of(DOCSTRING) == {
        "seed": "of everything that is random",
        "steps": "how long",
        "epochs": "how long",
        "activation_checkpointing": "less memory",
    }


def test_columns_become_a_list_between_the_prose():
    assert as_markdown(DOCSTRING) == (
        "How a run is made.\n\n- `seed`: of everything that is random\n- `steps, epochs`: how long\n"
        "- `activation_checkpointing`: less memory\n\nA last word."
    )


def test_prose_has_no_columns():
    assert meanings_of("One line.\n\nA paragraph of\nwords that  are not aligned.") == {}
