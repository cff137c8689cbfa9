"""Markup in which every text is escaped."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from tracelens.report.markup import Markup, joined, tag


def test_text_is_escaped_and_markup_is_not():
    assert tag("p", "a<b", tag("b", "&"), class_="x") == '<p class="x">a&lt;b<b>&amp;</b></p>'


def test_attributes_are_escaped_hyphened_and_left_out_when_none():
    assert tag("a", data_row='"><script>', href=None) == '<a data-row="&quot;&gt;&lt;script&gt;"></a>'


def test_numbers_lose_digits_that_no_screen_shows():
    assert tag("rect", x=1.23456, y=2.0, width=0.001) == '<rect x="1.23" y="2" width="0"></rect>'


def test_control_characters_are_shown_as_pictures():
    assert joined("\x1b[31m\u202e") == "␛[31m\ufffd"


def test_a_void_element_has_no_end_tag():
    assert isinstance(tag("wbr"), Markup)
    assert tag("wbr") == "<wbr>"


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(), st.text())
def test_no_text_becomes_an_element_or_an_attribute(content, attribute):
    reader = Reader()
    reader.feed(tag("p", content, title=attribute))
    reader.close()
    assert [(name, list(attributes)) for name, attributes in reader.elements] == [("p", ["title"])]
