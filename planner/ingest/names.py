"""Well-known names of columns, field by field."""

from __future__ import annotations

import re
from collections.abc import Mapping

# as they are compared: lower case, letters and digits only; the first one present wins
_TABLE = """
arrival: arrival arrivaltime arrivaltimestamp arrivedat timestamp time datetime ts
    requesttime starttime createdat created submittime timeutc timestampms
    timestampns timestampus arrivalms arrivaltimems
input_tokens: inputtokens contexttokens requesttokens prompttokens inputlength
    promptlength isl inputlen promptlen inputtoks prompttoks numinputtokens
    numprompttokens numprefilltokens prefilltokens ninput
output_tokens: outputtokens generatedtokens responsetokens completiontokens
    outputlength responselength osl outputlen responselen outputtoks numoutputtokens
    numcompletiontokens numdecodetokens decodetokens noutput
total_tokens: totaltokens tokens tokenspers tokenspersecond tps
model: model modelname modelid
region: region regionname location zone datacenter datacentre
tier: tier servicetier slotier sloclass serviceclass priority
hash_ids: hashids
time: time binstart binstarts timeutc timestamp datetime ts windowstart windowstarts
    hourstart intervalstart intervalstartutc date t seconds
requests: requests requestcount requestscount numrequests nrequests count counts
    invocations arrivals
rate: rate raterps requestrate rps qps requestspers requestspersecond
series: series service servicename client endpoint workload name
"""


def compact(name: str) -> str:
    """A column's name as it is compared: ``Request tokens`` gives ``requesttokens``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _parse(table: str) -> Mapping[str, tuple[str, ...]]:
    entries = re.findall(r"^(\w+):((?:.|\n(?= ))*)", table, re.MULTILINE)
    return {field: tuple(names.split()) for field, names in entries}


SYNONYMS = _parse(_TABLE)
