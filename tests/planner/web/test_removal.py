"""What its page removes is gone, and what rests on it stays."""

from typing import Any

import pytest

from planner.models import (
    Calibration,
    Channel,
    OwnGpu,
    OwnModel,
    PriceList,
    Profile,
    Run,
    Schedule,
    Source,
    Sweep,
    User,
)
from tests.planner.objects import made
from tests.planner.web.pages import signed_in

REMOVED = {
    "hardware/profiles/": Profile,
    "hardware/calibrations/": Calibration,
    "hardware/gpus/": OwnGpu,
    "hardware/models/": OwnModel,
    "hardware/prices/lists/": PriceList,
    "schedules/": Schedule,
    "sources/": Source,
    "what-if/": Sweep,
}


@pytest.mark.parametrize("page", REMOVED)
def test_a_page_removes_its_row_alone(admin: User, page: str) -> None:
    known = made(admin, "own")
    model = REMOVED[page]
    runs = Run.objects.filter(sweep=None).count()
    answer = signed_in(admin).post(f"/{page}{known.by_word[page]}/delete/")
    assert answer.status_code == 302
    assert not model.objects.exists() and Run.objects.filter(sweep=None).count() == runs


def test_a_recipient_is_added_tried_and_removed(planner: User, settings: Any) -> None:
    settings.HEADROOM_WEBHOOKS = ["hooks.example.com"]
    client = signed_in(planner)
    chosen = {"kind": "webhook", "address": "https://hooks.example.com/T1", "events": ["digest"]}
    assert client.post("/notices/", chosen | {"address": "https://x.example/"}).status_code == 400
    assert client.post("/notices/", chosen).status_code == 302
    channel = Channel.objects.get()
    assert (channel.user, channel.events) == (planner, ["digest"])
    client.post(f"/notices/{channel.pk}/", {"test": "1"})
    assert channel.deliveries.count() == 1 and "T1" in client.get("/notices/").content.decode()
    client.post(f"/notices/{channel.pk}/", {"remove": "1"})
    assert not Channel.objects.exists()
