"""Heads of tables: what a template says in a word each."""

from django.template import Context, Template


def rendered(source: str, **context: str) -> str:
    return Template(source).render(Context(context))


def test_heads_of_words_figures_and_what_is_only_spoken() -> None:
    assert rendered('{% heads "Model" "num:Cost" "hidden:What to do" %}') == (
        '<th scope="col">Model</th>'
        '<th scope="col" class="num">Cost</th>'
        '<th scope="col"><span class="visually-hidden">What to do</span></th>'
    )


def test_a_colon_of_a_label_is_its_own_and_html_is_text() -> None:
    assert rendered("{% heads name %}", name="Ratio: <b>P/D</b>") == (
        '<th scope="col">Ratio: &lt;b&gt;P/D&lt;/b&gt;</th>'
    )
