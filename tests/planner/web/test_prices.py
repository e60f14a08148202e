"""The page of prices: filters, orders, and lists of one's own."""

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from planner.inputs.catalogue import regions
from planner.models import PriceList
from planner.services.scenarios import scenario_warnings
from tests.planner.samples import DOCUMENT
from tests.planner.web.pages import text_of

pytestmark = pytest.mark.django_db


CSV = b"region,gpu,on_demand_usd,one_year_usd,provider\nhome,H100,0.01,0.005,ours\n"


def test_prices_are_filtered_ordered_and_ones_own_kept(client: Client) -> None:
    """777 rows had no order and no filter, and no price was one's own."""
    page = reverse("web:prices")
    for wrong, sentence in ((b"a,b\n", "is not known"), (b"region,gpu\n", "no price")):
        sent = {"file": SimpleUploadedFile("wrong.csv", wrong)}
        answer = client.post(reverse("web:price-list-add"), sent)
        assert answer.status_code == 422 and sentence in text_of(answer)
    kept = client.post(reverse("web:price-list-add"), {"file": SimpleUploadedFile("dc.csv", CSV)})
    assert kept["Location"] == page
    rows = client.get(page, {"gpu": "H100-SXM", "order": "usd_per_gpu_hour"}).context["prices"]
    assert (rows[0].price_list, rows[0].one_year_usd_per_gpu_hour) == ("dc", 0.005)
    amounts = [row.usd_per_gpu_hour for row in rows]
    assert amounts == sorted(amounts) and {row.gpu for row in rows} == {"H100-SXM"}
    only = client.get(page, {"provider": "gcp"}).context["prices"]
    assert {row.provider for row in only} == {"gcp"}
    derived = client.get(page, {"gpu": "A100-80GB", "provider": "aws"}).context["prices"]
    kinds = {row.region: row.provenance.kind for row in derived}
    used = regions()["us-east-1"]
    assert kinds["us-east-1"] == used.sources["A100-80GB"].kind == "modelled"
    assert used.usd_per_gpu_hour["A100-80GB"] in {row.usd_per_gpu_hour for row in derived}
    with_list = DOCUMENT + "\nprice_list: dc\n"
    assert not [doubt for doubt in scenario_warnings(with_list) if "price_list" in doubt]
    missing = scenario_warnings(DOCUMENT + "\nprice_list: nope\n")
    assert "there is no price list 'nope'; there are dc" in missing[0]
    client.post(reverse("web:price-list-delete", args=["dc"]))
    assert not PriceList.objects.exists()
