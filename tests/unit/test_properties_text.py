"""Settings written as a properties file are read back as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cosmodrome.config import as_properties, parse_properties

KEYS = st.from_regex(r"[a-z][!-~ ]{0,10}", fullmatch=True).map(str.strip)
VALUES = (st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20) | st.sampled_from(["a\\b", "x\ny"])).map(
    str.strip
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_is_read_again(settings: dict[str, str]) -> None:
    assert dict(parse_properties(as_properties(settings))) == settings
