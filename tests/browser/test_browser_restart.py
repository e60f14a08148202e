"""A browser that is lost in one test is there again in the next."""

import contextlib
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("lost", ["chrom", "node"])  # the browser, or what drives it
def test_a_lost_browser_is_started_again(chromium: Any, page: Any, lost: str) -> None:
    page.set_content("<h1>Before</h1>")
    for process in psutil.Process().children(recursive=True):
        # Children end by themselves between being listed and looked at: those are lost already.
        with contextlib.suppress(psutil.NoSuchProcess):
            if lost in process.name():
                process.kill()
    with pytest.raises(Exception, match="closed"):
        page.set_content("<h1>Never shown</h1>")
    context = chromium.context()
    again = context.new_page()
    again.set_content("<h1>After</h1>")
    assert again.inner_text("h1") == "After"
    context.close()
