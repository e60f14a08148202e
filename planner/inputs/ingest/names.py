"""List the well-known column names of each field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from planner.errors import IngestError

MAX_COLUMNS = 1_000
MAX_NAME = 1_000  # characters

# In the form of ``compact``: lower case, letters and digits only. The first name present wins.
_TABLE = """
arrival: arrival arrivaltime arrivaltimestamp arrivedat timestamp time datetime ts
    requesttime starttime starttimeunixnano createdat requestcreatedat startedat created
    submittime timeutc timestampms timestampns timestampus arrivalms arrivaltimems
    arrivaltimestamps arrivaltimesec arrivaltimeseconds requesttimestamp requestedat
    requeststarttime requeststartns requestreceivedat requestsubmittedat receivedat
    eventtime submittedat sendtime sentat tsms tsus tsns tss tms epochms epochs epoch begintime
    eventtimestamp logtime loggingtime datecreated createtime asctime timegenerated
    timegeneratedutc starttimestamp start begin timelocal timeiso8601 date t
input_tokens: inputtokens contexttokens requesttokens prompttokens inputlength
    promptlength isl inputlen promptlen inputtoks prompttoks numinputtokens
    numprompttokens numprefilltokens prefilltokens ninput prefilllen prefilllength
    contextlen contextlength inlen intokens tokensin promptsize inputsize querylen
    inputtokencount prompttokencount prompttokenscount nprompt requnits
    inputsequencelength inputtokenscount tokensinput usageinputtokens
    nativetokensprompt tokensprompt
output_tokens: outputtokens generatedtokens responsetokens completiontokens
    outputlength responselength osl outputlen responselen outputtoks numoutputtokens
    numcompletiontokens numdecodetokens decodetokens noutput completionlen
    completionlength generatedlen generatedlength generationlen generationlength
    generationtokens gentokens genlen outlen outtokens tokensout decodelen decodelength
    outputsize responsesize completiontoks answertokens outputtokencount
    completiontokencount candidatestokencount ncompletion resunits
    outputsequencelength outputtokenscount tokensoutput usageoutputtokens
    nativetokenscompletion tokenscompletion
total_tokens: totaltokens tokens tokenspers tokenspersecond tps tpm tokensperminute
cached_tokens: cachedtokens cachereadinputtokens cachedinputtokens inputcachedtokens
    promptcachedtokens cachedprompttokens cachereadtokens numcachedtokens cachehittokens
    prompttokenscached promptcachehittokens cachedcontenttokencount inputcacheread
    cachereadinputtokencount nativetokenscached
cache_writes: cachecreationinputtokens cachewriteinputtokens cachecreationtokens
    cachewritetokens cachewriteinputtokencount
reasoning_tokens: reasoningtokens thinkingtokens thoughtstokencount outputreasoningtokens
model: model modelname modelid requestmodel modeldeploymentname deployment
region: region regionname location zone datacenter datacentre
tier: tier servicetier slotier sloclass serviceclass priority
hash_ids: hashids
utility: utility requestutility utilityperrequest
status: status statuscode responsestatus responsestatuscode httpstatus responsecode
    httpstatuscode requeststatus outcome wascancelled cancelled canceled success
    finishreason errortype errorcode
cache_hit: cachehit iscachehit cachestatus cachedresponse responsecached fromcache iscached cached
    cache
request_id: requestid reqid xrequestid callid completionid spanid requestuuid
delay: delay delays delayms turndelay turndelayms thinktime thinktimes thinktimems
    thinktimeseconds think thinks thinkms toolgap toolgaps toolgapms toolgapseconds tooltime
    tooltimes tooltimems
session: sessionid session conversationid conversation threadid dialogid sessionuuid
parent: parentrequestid parentchatid
sample_rate: samplerate samplingrate sampleprobability samplingprobability
time: time binstart binstarts timeutc timestamp datetime ts windowstart windowstarts
    hourstart intervalstart intervalstartutc starttime start begin periodstart bucketstart date t
    seconds bucket period
requests: requests requestcount requestscount numrequests nrequests count counts
    invocations arrivals calls callcount nummodelrequests totalrequests
    requeststotal requestsuccess requestssuccess
rate: rate raterps requestrate rps qps requestspers requestspersecond rpm
    requestsperminute reqps
series: series service servicename client endpoint workload name
"""


def compact_name(name: str) -> str:
    """Return a column's name as it is compared: ``requesttokens`` for ``Request tokens``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def check_names(columns: Sequence[str], name: str) -> None:
    """Refuse tables with too many or too long names.

    Later checks of the names take time quadratic in their number.
    """
    if len(columns) > MAX_COLUMNS:
        raise IngestError(
            f"{name} has {len(columns):,} columns and {MAX_COLUMNS:,} are allowed. Keep those of "
            "time, tokens, requests and labels."
        )
    longest = max(columns, key=len, default="")
    if len(longest) > MAX_NAME:
        raise IngestError(
            f"{name}: a column's name has {len(longest):,} characters ({longest[:40]!r}...) and "
            f"{MAX_NAME:,} are allowed. Check its delimiter and its first line."
        )


def _parse(table: str) -> Mapping[str, tuple[str, ...]]:
    entries = re.findall(r"^(\w+):((?:.|\n(?= ))*)", table, re.MULTILINE)
    return {field: tuple(names.split()) for field, names in entries}


SYNONYMS = _parse(_TABLE)
