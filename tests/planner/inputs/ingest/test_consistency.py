"""Readings that are checked against their file: asked, set aside, filtered or summed."""

import json

import numpy as np
import pytest

from planner.errors import Ambiguous, IngestError
from planner.inputs.ingest import IngestOptions, ingest_file, read_demand, read_requests
from planner.inputs.ingest.reader import with_choice

HEAD = "timestamp,prompt_tokens,completion_tokens\n"
T0 = 1_748_822_400


def asked(ingest, content, name="t.csv"):
    """Return the choices of a file that allows several readings, as option and value."""
    with pytest.raises(Ambiguous) as caught:
        ingest(content, name)
    assert all(choice.figures for choice in caught.value.choices)
    assert all(choice.flag in str(caught.value) for choice in caught.value.choices)
    return {(choice.option, choice.value): choice for choice in caught.value.choices}


def reread(tmp_path, store, choice, name="t.csv"):
    return ingest_file(tmp_path / name, store, with_choice(IngestOptions(), choice))


def rows(row, count=30):
    """Return a line per number from 0 on."""
    return "".join(f"{row(i)}\n" for i in range(count))


def every(step_s, row, count=30):
    """Return lines that begin with a time, ``step_s`` seconds apart."""
    return rows(lambda i: f"{T0 + step_s * i},{row(i)}", count)


def panel(unit):
    return "Time,chat,code\n" + every(3600, lambda i: f"{2 + i % 3}{unit},1{unit}")


def counter(head):
    """Return the readings of a counter that restarts at half of its 60 hours."""
    values = np.cumsum(GROWN)
    values[30:] -= values[29]
    return head + every(3600, lambda i: values[i], 60)


def tokens(means):
    """Return hours of requests with tokens per request, or in all."""
    head = "time,requests,input_tokens\n"
    return head + every(
        3600, lambda i: f"{REQUESTS[i]},{MEANS[i] * (1 if means else REQUESTS[i])}", 48
    )


def windows(length_s):
    begins = range(T0, T0 + 30 * 3600, 3600)
    return "window_start,window_end,requests\n" + rows(
        lambda i: f"{begins[i]},{begins[i] + length_s},5"
    )


def half_past(clock):
    """Return requests at half past every hour of two days, which ``clock`` writes."""
    return HEAD + rows(
        lambda h: f"2025-06-{2 + h // 24:02} {clock(h % 24):02}:30:00,{10 + h},20", 48
    )


def sessions(step):
    return f"session_id,{HEAD}" + rows(
        lambda i: f"s{i % 5},{T0 + i},{10 + 9 * i},{5 + (i * step) % 97}", 60
    )


def offsets(step):
    return "time,input_tokens,output_tokens\n" + rows(lambda i: f"{i * step % 97},10,20", 60)


def spans(whole):
    """Return spans of two parts each."""
    return f"span_id,parent_id,{HEAD}" + rows(
        lambda i: f"a{i},,{T0 + i},{whole},20\nb{i},a{i},{T0 + i},10,20\nc{i},a{i},{T0 + i},30,20",
        20,
    )


def labels(amounts):
    """Return an amount per label at each of 20 hours."""
    return "time,model,requests\n" + rows(
        lambda i: "\n".join(f"{T0 + 3600 * i},{label},{n}" for label, n in amounts.items()), 20
    )


def zones(whole):
    return "time,region,requests\n" + rows(
        lambda h: "\n".join(
            f"2025-06-02 {h:02d}:00,{region},{n}"
            for region, n in ((whole, 1500 + h % 5), ("eu", 1000 + h % 5), ("us", 500))
        ),
        24,
    )


def dotted(counts):
    return "time;requests\n" + rows(lambda h: f"2025-06-02 {h:02d}:00;{counts[h]}", len(counts))


def json_lines(*documents):
    return "".join(f"{json.dumps(document)}\n" for document in documents)


GROWN = [100 + i % 7 for i in range(60)]
REQUESTS, MEANS = [(20, 300, 1000)[i % 3] for i in range(48)], [900 + i % 5 for i in range(48)]
TOKENS = sum(n * mean for n, mean in zip(REQUESTS, MEANS, strict=True))
STEPS = rows(lambda i: f"{137 * i},10,20", 40)
MILLIS = rows(lambda i: f"2025-06-02T00:{i // 60:02}:{i % 60:02}.123,10,20", 90)
APPENDED = f"{T0}.0,10,20\n" + rows(lambda i: f"{T0 + 7 * (i + 1)},{11 + i},20", 29)
EVENTS = (
    "request_id,event,"
    + HEAD
    + rows(lambda i: f"r{i // 2},{'end' if i % 2 else 'start'},{T0 + i},10,{i % 2 * 20}", 60)
)
TOTALS = "timestamp,input_tokens,output_tokens,total_tokens\n" + every(
    7, lambda i: f"{100 + i},20,{100 + i}"
)
CLOCK = rows(lambda i: f"2025-06-02 10:00:{i:02}{{}},10,20")
FORECAST = rows(lambda h: f"2025-06-02 {h:02d}:00,{90 + h},{'actual' if h < 9 else 'forecast'}", 12)
BATCH = {
    "request_counts": {"total": 1000},
    "usage": {"input_tokens": 90_000, "output_tokens": 9000},
}
MEASURED = sum(90 + h for h in range(9))
COUNTS = [987, 1234, 1100, 998, 1350, 2100, 1999, 875]
THROUGHPUT = (
    "Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 2.0 tokens/s"
)

# What is asked of a content, and what is read by each answer.
ASKED = {
    "seconds or milliseconds": (HEAD + STEPS, {
        ("map", "arrival=timestamp:s"): {"end_s": 5343},
        ("map", "arrival=timestamp:ms"): {"end_s": pytest.approx(5.343)}}),
    "seconds that look like milliseconds": (
        rows(lambda i: f'{{"timestamp": {i * 1.31}, "input_length": 6, "output_length": 5}}', 50),
        {("map", f"arrival=timestamp:{unit}"): {} for unit in ("s", "ms")}),
    "a column that only grows": (counter("time,requests\n"), {
        ("amounts", "counter"): {"requests": sum(GROWN)}, ("amounts", "counts"): {}}),
    "a panel without a unit": (panel(""), {
        ("amounts", unit): {} for unit in ("per_second", "per_minute", "counts")}),
    "day or month first": (HEAD + "02/06/2025 10:00:00,1,2\n03/06/2025 10:00:00,1,2\n", {
        ("dates", "day_first"): {"start": "2025-06-02T10:00:00Z"},
        ("dates", "month_first"): {"start": "2025-02-06T10:00:00Z"}}),
    "tokens or their means": (tokens(means=True), {
        ("amounts", "per_request"): {"input_tokens": TOKENS}, ("amounts", "counts"): {}}),
    "bins shorter than their step": (windows(300), {("amounts", "counts"): {}}),
    "a zone in a name": (HEAD.replace("timestamp", "timestamp_jst") + CLOCK.format(*[""] * 30), {
        ("timezone", "Asia/Tokyo"): {"start": "2025-06-02T01:00:00Z"}, ("timezone", "UTC"): {}}),
    "a zone of two countries": (HEAD + CLOCK.format(*[" CST"] * 30), {
        ("timezone", "Asia/Shanghai"): {"start": "2025-06-02T02:00:00Z"},
        ("timezone", "America/Chicago"): {}, ("timezone", "UTC"): {}}),
    "a zone in a column": (
        HEAD.replace(",", ",timezone,", 1) + CLOCK.format(*[",Asia/Tokyo"] * 30), {
        ("timezone", "Asia/Tokyo"): {}, ("timezone", "UTC"): {}}),
    "a zone in the name of the time": (
        HEAD.replace("timestamp", "timestamp (America/Chicago)") + CLOCK.format(*[""] * 30), {
        ("timezone", "America/Chicago"): {}, ("timezone", "UTC"): {}}),
    "hours without am and pm": (half_past(lambda hour: hour % 12 or 12), {("timezone", "UTC"): {}}),
    "days alone": (HEAD + rows(lambda i: f"2025-06-1{i // 40},10,20", 400), {("where", "all"): {}}),
    "totals that grow within sessions": (sessions(1), {
        ("format", "csv"): {}, ("format", "demand"): {}}),
    "offsets that rise and fall": (offsets(41), {("where", "all"): {}}),
    "spans that hold the sum of others": (spans(40), {("where", "all"): {}}),
    "events of one request": (EVENTS, {
        ("where", 'event = "start"'): {}, ("where", 'event = "end"'): {"requests": 30},
        ("where", "all"): {}}),
    "rows that come again whole": (HEAD + MILLIS + "".join(MILLIS.splitlines(True)[:9]), {
        ("map", "request_id=timestamp"): {}, ("where", "all"): {}}),
    "tokens that only grow": (HEAD + every(60, lambda i: f"{90 * i + 5},{i + 1}", 40), {
        ("format", "csv"): {}, ("format", "demand"): {}}),
    "a label as large as all others": (
        "time,model,requests\n" + rows(lambda i: "\n".join(
            f"{T0 + 60 * i},{label},{n * (1 + i % 3)}"
            for label, n in {"whole": 6, "a": 1, "b": 2, "c": 3}.items()), 5), {
        ("where", 'model != "whole"'): {"requests": 54}, ("where", "all"): {}}),
    "prompts that equal the total": (TOTALS, {("map", "input_tokens=input_tokens"): {}}),
    "amounts that only fall": (
        "time,requests\n" + every(60, lambda i: 1000 - i * 7), {("amounts", "counts"): {}}),
    "one time of all requests": (
        HEAD + rows(lambda i: f"{T0},{10 + i},20"), {("where", "all"): {}}),
    "an export appended to itself": (HEAD + APPENDED * 2, {
        ("map", "request_id=timestamp"): {}, ("where", "all"): {}}),
    "counts with points alone": (dotted([f"1.{h}50" for h in range(8)]), {
        ("amounts", unit): {} for unit in ("per_second", "per_minute", "counts")}),
    "rows of a forecast": ("time,requests,kind\n" + FORECAST, {
        ("where", 'kind != "forecast"'): {"requests": MEASURED}, ("where", "all"): {}}),
    "a label that is the sum of two": (zones("zone 3"), {
        ("where", 'region != "zone 3"'): {"requests": sum(1500 + h % 5 for h in range(24))},
        ("where", "all"): {}}),
    "results of a batch": (rows(lambda i: json.dumps(BATCH | {"created_at": T0 + 60 * i})), {
        ("map", "sample_rate=request_counts.total"): {}, ("sample", "1"): {}}),
}  # fmt: skip


@pytest.mark.parametrize(("content", "answers"), ASKED.values(), ids=ASKED)
def test_what_has_several_readings_is_asked(ingest, tmp_path, store, content, answers):
    file = "t.jsonl" if content.startswith("{") else "t.csv"
    choices = asked(ingest, content, file)
    assert choices.keys() == answers.keys()
    for key, figures in answers.items():
        report = reread(tmp_path, store, choices[key], file) if figures else None
        assert {name: getattr(report, name) for name in figures} == figures


READ = {
    "milliseconds by name": (
        HEAD.replace("timestamp", "t_ms") + STEPS, {}, {"end_s": pytest.approx(5.343)}),
    "seconds as stated": (HEAD + STEPS, {"mapping": {"arrival": "timestamp:s"}}, {"end_s": 5343}),
    "a panel with a unit": (panel(" req/s"), {}, {"requests": 3600 * (30 * 3 + 30)}),
    "prompts in parts": (
        json_lines({"timestamp": T0, "usage": {
            "input_tokens": 250, "cache_creation_input_tokens": 750,
            "cache_read_input_tokens": 9000, "output_tokens": 400}}),
        {}, {"input_tokens": 10_000, "cached_tokens": 9000}),
    "prompts with cached parts": (
        json_lines({"timestamp": T0, "usage": {
            "prompt_tokens": 10_000, "completion_tokens": 400, "total_tokens": 10_400,
            "prompt_tokens_details": {"cached_tokens": 9000}}}),
        {}, {"input_tokens": 10_000, "cached_tokens": 9000}),
    "requests without answers": (
        HEAD + every(1, lambda i: "400,0"), {},
        {"requests": 30, "output_tokens": 0, "unanswered": 30}),
    "a rounded total in a panel": (
        "Time,chat,code,Total\n" + every(
            60, lambda i: f"{2 + i % 3}.33 req/s,1.33 req/s,{3 + i % 3}.67 req/s"),
        {}, {"models": ("chat", "code"), "requests": pytest.approx(60 * 30 * (3.33 + 1.33))}),
    "tokens of all requests": (tokens(means=False), {}, {"input_tokens": TOKENS}),
    "bins as long as their step": (windows(3600), {}, {"requests": 150}),
    "hours of 24": (half_past(lambda hour: hour), {}, {"requests": 48}),
    "a maximum beside a mean": (
        "time,avg_rpm,max_rpm\n" + every(3600, lambda i: f"{20 + i % 3},90"), {},
        {"requests": pytest.approx(60 * sum(20 + i % 3 for i in range(30)))}),
    "sessions": (sessions(31), {}, {"requests": 60}),
    "offsets in order": (offsets(1), {}, {"requests": 60}),
    "spans of their own": (spans(7), {}, {"requests": 60}),
    "rows without a label as the sum": (
        labels({"a": 5, "b": 7, "": 12}), {}, {"requests": 20 * 12}),
    "rows without a label": (labels({"a": 5, "b": 7, "": 9}), {}, {"requests": 20 * 21}),
    "rows of several keys": (
        "date,api_key,model,api_requests,prompt_tokens,completion_tokens\n"
        + "".join(f"2025-06-{d:02},{k},m,10,100,20\n" for d in (1, 2, 3) for k in "ab"),
        {}, {"requests": 60, "input_tokens": 600, "rejected": 0}),
    "embeddings": (
        json_lines(*({"timestamp": T0 + i, "usage": {"prompt_tokens": 40, "total_tokens": 40}}
                     for i in range(9))),
        {}, {"kind": "requests", "requests": 9, "output_tokens": 0}),
    "ends of requests": (EVENTS, {"where": "event = end"}, {"requests": 30}),
    "prompts that grow": (HEAD + every(60, lambda i: f"{90 * i + 5},10", 40), {}, {"requests": 40}),
    "a delay beside every time": (
        "arrival_s,session_id,delay,prompt_tokens,completion_tokens\n"
        + rows(lambda i: f"{i}.5,s{i // 2},7,500,100", 40),
        {}, {"start_ns": 500_000_000, "end_ns": 39_500_000_000}),
    "tokens per second": (
        "time,prompt_tokens_per_second,generation_tokens_per_second\n"
        + rows(lambda i: f"2025-06-02T00:{i:02d}:00Z,{1000 + i % 5},200", 60),
        {}, {"kind": "demand", "requests": None, "output_tokens": 60 * 60 * 200}),
    "failed requests in a column": (
        "time,successful_requests,failed_requests\n" + every(60, lambda i: "9,1", 5), {},
        {"requests": 45}),
    "means per request": (
        "time,requests,avg_input_tokens,mean_output_tokens\n"
        + every(60, lambda i: "10,80.5,20", 5),
        {}, {"input_tokens": 4025, "output_tokens": 1000}),
    "uncached tokens": (
        "time,requests,uncached_input_tokens,cache_read_input_tokens,output_tokens\n"
        + every(60, lambda i: "10,100,50,20", 5),
        {}, {"input_tokens": 750, "cached_tokens": 250}),
    "pairs after the words of a logger": (
        rows(lambda i: f"2025-06-02 00:00:{i + 1:02},250 INFO api: done, "
                       f"prompt_tokens={i + 1}, osl=20", 8),
        {"file": "x.log"}, {"requests": 8, "input_tokens": 36, "output_tokens": 160}),
    "vLLM by the clock of its collector": (
        "\n".join(f'2025-06-02T00:00:{s}Z {{pod="a"}} INFO 06-02 02:00:{s} [loggers.py:1] '
                  f"{THROUGHPUT}" for s in (30, 20, 10)),
        {"file": "x.log"}, {"start": "2025-06-02T00:00:10Z", "input_tokens": 150}),
    "points beside dotted dates": (
        "Datum;Anfragen;Input Tokens;Output Tokens\n"
        + rows(lambda i: f"{i + 10}.06.2025;25.000;1.200.000;9.500", 15),
        {}, {"requests": 375_000, "input_tokens": 18_000_000, "output_tokens": 142_500}),
    "titles above the names": (
        "Report\nGenerated,2025-07-01\n\nDate,Requests,Input tokens,Output tokens\n"
        + rows(lambda i: f"2025-06-{i + 10},5,50,9", 15) + "Total,75,750,135\n",
        {}, {"requests": 75}),
    "prompts as stated": (
        TOTALS, {"mapping": {"input_tokens": "input_tokens"}}, {"requests": 30}),
    "times with offsets are no ranges": (
        "period,requests\n" + rows(lambda h: f"2026-01-05 {h:02}:00-05:00,{h % 5}", 12), {},
        {"start_s": 1767571200 + 5 * 3600}),
    "a total of a day": (
        "date,hour,requests\n" + "".join(
            f"2026-01-0{day},{hour},{n}\n" for day, hour, n in (
                *((5, h, 1 + h % 5) for h in range(24)), (5, "Total", 69),
                *((6, h, 1 + h % 5) for h in range(24)))),
        {}, {"requests": 2 * sum(1 + h % 5 for h in range(24))}),
    "a total of keys": (
        "date,api_key,requests\n" + "".join(
            f"2026-01-0{day},{key},{n}\n" for day in (5, 6)
            for key, n in (("one", 3), ("two", 4), ("Total", 7))),
        {"bin_s": 86400}, {"requests": 14}),
    "thousands per minute": (
        "time,requests per minute (thousands)\n" + every(60, lambda i: i % 7, 14), {},
        {"requests": 42_000}),
    "points in counts beside smaller counts": (
        dotted([f"{n:,}".replace(",", ".") for n in COUNTS]), {}, {"requests": sum(COUNTS)}),
    "a label that is called the sum": (
        zones("global"), {}, {"requests": sum(1500 + h % 5 for h in range(24))}),
}  # fmt: skip


@pytest.mark.parametrize(("content", "options", "figures"), READ.values(), ids=READ)
def test_what_has_one_reading_is_read(ingest, content, options, figures):
    file = "t.jsonl" if content.startswith("{") else "t.csv"
    report = ingest(content, **{"file": file, **options})
    assert {name: getattr(report, name) for name in figures} == figures


def test_a_named_counter_is_read_as_one(ingest):
    report = ingest(counter("time,requests_total\n"))
    assert report.requests == sum(GROWN)
    assert report.checks["counter"]


def test_local_times_over_the_end_of_summer_are_asked(ingest, tmp_path, store):
    hours = [0, 1, 1, 2, 3]  # 01:00 comes twice
    rows = "".join(
        f"2025-11-02 {hour:02}:{minute:02}:00,10,20\n" for hour in hours for minute in range(60)
    )
    choices = asked(ingest, HEAD + rows)
    assert ("timezone", "UTC") in choices
    report = reread(tmp_path, store, choices["timezone", "America/New_York"])
    assert report.end_s - report.start_s == 5 * 3600 - 60
    arrivals = read_requests(store).arrival_s
    assert (arrivals == 60 * np.arange(300)).all()


@pytest.mark.parametrize("head", [HEAD, "time,requests,input_tokens\n"])
def test_local_times_without_the_hour_that_spring_skips_are_asked(ingest, tmp_path, store, head):
    def rows(*hours):
        return head + "".join(
            f"2025-03-09 {hour:02}:{minute:02}:00,10,20\n" for hour in hours for minute in range(60)
        )

    choices = asked(ingest, rows(0, 1, 3, 4))  # 02:00 does not exist in New York
    assert ("timezone", "UTC") in choices
    report = reread(tmp_path, store, choices["timezone", "America/New_York"])
    assert report.end_s - report.start_s == pytest.approx(4 * 3600, abs=60)
    for hours in ((0, 1, 2, 3, 4), (0, 2, 3, 4), (0, 1, 4, 5)):  # ordinary gaps
        assert ingest(rows(*hours)).start == "2025-03-09T00:00:00Z"


@pytest.mark.parametrize("wrong", [0, 2_400_000_000])
def test_a_row_whose_clock_is_wrong_is_set_aside(ingest, store, wrong):
    times = [T0 + 3 * i for i in range(500)]
    times.insert(250, wrong)
    report = ingest(HEAD + "".join(f"{t},10,20\n" for t in times))
    assert (report.rows, report.requests, report.rejected) == (501, 500, 1)
    assert (report.start_s, report.end_s) == (T0, T0 + 3 * 499)
    assert (report.input_tokens, report.output_tokens) == (5000, 10_000)
    assert report.reject_samples[0].line == 252 and sum(report.left_out.values()) == 1
    arrivals = read_requests(store).arrival_s
    assert arrivals[0] == 0 and arrivals[-1] == 3 * 499 and len(arrivals) == 500


def test_sums_in_a_mapping(ingest, store):
    mapping = {"arrival": "t", "input_tokens": "a + b+c", "output_tokens": "d+e"}
    report = ingest("t,a,b,c,d,e\n1,1,2,3,4,5\n2,10,,30,40,0\n", mapping=mapping)
    assert (report.input_tokens, report.output_tokens) == (46, 49)
    assert report.columns["input_tokens"] == "a+b+c"
    with pytest.raises(IngestError):
        ingest("t,a,b,c,d,e\n1,1,2,3,4,5\n", mapping=mapping | {"input_tokens": "a+z"})


LOG = (
    "request_id,timestamp,model,status,cache_hit,prompt_tokens,completion_tokens\n"
    + "".join(f"r{i},{T0 + i},m,200,false,100,10\n" for i in range(6))
    + f"r5,{T0 + 5},m,200,false,100,10\n"  # again
    + f"c,{T0 + 6},m,200,true,100,10\n"  # from a cache
    + f"f,{T0 + 7},m,503,false,100,0\n"  # failed
    + f"x,{T0 + 8},m,499,false,100,0\n"  # cancelled: its prompt was computed
)


def test_rows_that_are_no_load_are_left_out_and_counted(ingest):
    report = ingest(LOG)
    assert (report.rows, report.requests, report.rejected) == (10, 7, 3)
    assert sorted(report.left_out.values()) == [1, 1, 1]
    assert (report.input_tokens, report.output_tokens, report.cancelled) == (700, 60, 1)
    assert len(report.assumptions) >= 3


def test_a_filter_replaces_what_is_left_out(ingest):
    assert ingest(LOG, where="all").requests == 10
    assert ingest(LOG, where="status = 200").requests == 8
    assert ingest(LOG, where="status == '200'").requests == 8
    assert ingest(LOG, where="status in (200, 499) and cache_hit != true").requests == 8
    assert ingest(LOG, where=f"timestamp in {T0}..{T0 + 2}").requests == 3
    assert ingest(LOG, where='model not in (a, "b c") and completion_tokens > 0').requests == 8


@pytest.mark.parametrize(
    "where",
    ["status", "nope = 1", "status ~ 2", "status = 1 or 1 = 1", "a..b", "x in (1", "status >= b"],
)
def test_a_filter_that_is_none_is_refused(ingest, where):
    with pytest.raises(IngestError, match="where"):
        ingest(LOG, where=where)


def test_a_sample_is_declared_or_found(ingest):
    rows = "".join(f"{T0 + 7 * i},10,20,0.01\n" for i in range(20))
    assert ingest(HEAD.strip() + ",sample_rate\n" + rows).sample == pytest.approx(100)
    assert ingest(HEAD + f"{T0},10,20\n", sample="50").sample == 50
    assert ingest(HEAD + f"{T0},10,20\n", sample="0.02").sample == pytest.approx(50)
    for text in ("no", "0", "-2", "1e-9"):
        with pytest.raises(IngestError, match="sample"):
            ingest(HEAD + f"{T0},10,20\n", sample=text)


def test_columns_that_are_sums_of_others_count_once(ingest, store):
    rows = "".join(f"{T0 + 86_400 * i},{10 + i},{9 + i},1\n" for i in range(5))
    report = ingest("time,all_requests,good_requests,bad_requests\n" + rows)
    assert report.requests == sum(10 + i for i in range(5))
    assert len(read_demand(store)) == 1


def test_times_that_many_rows_share_are_asked_or_stated(ingest):
    def rows(form):
        return HEAD + "".join(f"{form.format(i // 40)},10,20\n" for i in range(400))

    assert ("where", "all") in asked(ingest, rows("2025-06-1{}"))
    assert ingest(rows("2025-06-02 10:0{}:00")).checks["coarse_times"]
    assert not ingest(rows("2025-06-02 10:00:0{}")).checks["coarse_times"]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("reasoning_tokens,total_tokens", (10, 20, 30, 60)),
        ("reasoning_tokens,cached_tokens,total_tokens", (10, 20, 30, 40, 100)),
    ],
)
def test_parts_that_the_total_shows_apart_are_added(ingest, head, row):
    content = HEAD.strip() + f",{head}\n" + f"{T0},{','.join(map(str, row))}\n" * 3
    report = ingest(content)
    assert report.input_tokens + report.output_tokens == 3 * row[-1]
    within = content.replace(str(row[-1]), "30")  # of prompt and answer alone
    report = ingest(within)
    assert report.input_tokens + report.output_tokens <= 3 * 30


def test_joined_files_with_other_orders_of_columns_are_refused(ingest):
    rows = f"{T0},10,20\n" * 5
    again = "timestamp,completion_tokens,prompt_tokens\n"
    with pytest.raises(IngestError, match="line 7"):
        ingest(HEAD + rows + again + rows)
    assert ingest(HEAD + rows + HEAD + rows).requests == 10


@pytest.mark.parametrize("mark", ["UTC+8", "GMT+08:00", "+08:00"])
def test_offsets_after_a_name_are_read(ingest, mark):
    report = ingest(HEAD + f"2025-06-02 10:00:00 {mark},10,20\n" * 2)
    assert report.start == "2025-06-02T02:00:00Z"


@pytest.mark.parametrize("tokens", ["1.700", '"1,700"', "1700.0", "1 700"])
def test_tokens_as_spreadsheets_write_them(ingest, tokens):
    assert ingest(HEAD + f"{T0},{tokens},7\n").input_tokens == 1700


@pytest.mark.parametrize(
    "time",
    ["25/Nov/2025:13:00:00 +0000", '"2025-11-25 13:00:00,000"', "20251125T130000Z",
     "2025-11-25 14:00:00 CET", '"Tue, 25 Nov 2025 13:00:00 +0000"', "25/11/2025 13:00:00",
     "11/25/2025 01:00:00 PM", "2025-11-25T08:00:00.000-0500", "45986.541666667",
     "25-NOV-25 01.00.00.000000 PM", "20251125130000"],
)  # fmt: skip
def test_times_as_other_tools_write_them(ingest, time):
    report = ingest(f"{HEAD}{time},1,2\n{time},1,2\n")
    assert report.start == "2025-11-25T13:00:00Z"


def test_json_arrays_and_documents(ingest):
    rows = [{"ts": T0 + i, "prompt_tokens": 5, "completion_tokens": 6} for i in range(9)]
    for content in (
        json.dumps(rows), json.dumps(rows, indent=1), json.dumps({"data": rows, "page": 1}),
        "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]",
        "\n".join(json.dumps(row, indent=1) for row in rows),
    ):  # fmt: skip
        assert ingest(content, "rows.json").requests == 9


def test_two_groups_of_rows_years_apart_are_refused(ingest):
    times = [T0 + i for i in range(50)] + [T0 + 86_400 * 4000 + i for i in range(50)]
    with pytest.raises(IngestError, match="where"):
        ingest(HEAD + "".join(f"{t},10,20\n" for t in times))
    report = ingest(HEAD + "".join(f"{t},10,20\n" for t in times), where=f"timestamp < {T0 + 99}")
    assert report.requests == 50


def test_few_ids_that_come_again_later_are_stated(ingest):
    rows = "".join(f"r{i // 2 if i < 12 else i},{T0 + i},10,20\n" for i in range(60))
    report = ingest("request_id," + HEAD + rows)
    assert report.requests == 60 and report.checks["repeated_ids"] in report.assumptions


def test_a_request_after_a_refused_row_with_its_id_and_time_counts(ingest):
    """Only the copy of a good row is a repeat: r1 comes twice, r2 first without tokens."""
    again = [(1, "10"), (1, "10"), (2, "nan"), (2, "10")]
    others = [(i, "10") for i in range(3, 60)]
    content = "".join(f"r{i},{T0 + i},{tokens},20\n" for i, tokens in (*again, *others))
    report = ingest("request_id," + HEAD + content)
    assert report.requests == 59 and sorted(report.reject_reasons.values()) == [1, 1]


ROW = ",500,100\n"


def test_a_duration_is_no_time_beside_a_column_of_moments(ingest):
    rows = [f"02/Jun/2025:10:00:{i:02d} +0000,2.{i % 7}{ROW}" for i in range(40)]
    head = "time_local,request_time,prompt_tokens,completion_tokens\n"
    assert ingest(head + "".join(rows)).columns["arrival"] == "time_local"


@pytest.mark.parametrize("day", ["2025-06-02", "13/06/2025", "20250613"])
def test_a_date_and_a_time_of_day_in_two_columns_are_one_time(ingest, day):
    rows = [f"{day},10:00:{i:02d}{ROW}" for i in range(40)]
    report = ingest("date,time,prompt_tokens,completion_tokens\n" + "".join(rows))
    assert report.clock == "utc" and report.requests == 40
    assert (report.end_ns - report.start_ns) == 39 * 10**9
    assert report.start.startswith("2025-06-")


@pytest.mark.parametrize(("suffix", "factor"), [("_k", 1e3), (" (thousands)", 1e3), ("_mil", 1e6)])
def test_tokens_in_thousands_and_millions(ingest, suffix, factor):
    head = f"time,requests,input_tokens{suffix},output_tokens{suffix}\n"
    rows = "".join(f"2025-06-02T{i:02d}:00:00Z,{10 + i % 3},5,{i % 4}\n" for i in range(24))
    report = ingest(head + rows)
    assert (report.input_tokens, report.output_tokens) == (120 * factor, 36 * factor)


def test_starts_that_follow_ends_are_a_benchmark(ingest):
    """Four users: the next request of each starts as the last one ends."""

    def log(shift):
        rng, ends, rows = np.random.default_rng(5), [0.0] * 4, []
        for _ in range(200):
            user = int(np.argmin(ends))
            start, took = ends[user], rng.uniform(1, 3)
            ends[user] = start + took
            rows.append(f"{start + shift * rng.uniform():.3f},{took * 1e3:.1f}{ROW}")
        return "start_s,latency_ms,prompt_tokens,completion_tokens\n" + "".join(rows)

    assert ingest(log(0.0)).checks["latency_gaps"]
    assert not ingest(log(5.0)).checks["latency_gaps"]


def test_the_column_of_times_may_be_the_last_one_of_a_panel(ingest):
    rows = "".join(f"{i % 5} req/s,2025-06-02T{i:02d}:00:00Z\n" for i in range(24))
    report = ingest("llama-3.1-8b,Time\n" + rows)
    assert report.models == ("llama-3.1-8b",) or report.series[0].model == "llama-3.1-8b"


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_turns_come_their_delay_after_the_turn_before(tmp_path, store, chunk_bytes):
    rows = []
    for i in range(30):
        rows.append({"session_id": f"s{i}", "timestamp": 4000 * i})
        rows += [{"session_id": f"s{i}", "delay": 3000 + 500 * turn} for turn in range(2)]
    rows = [row | {"input_length": 100, "output_length": 10} for row in rows]
    path = tmp_path / "sessions.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = ingest_file(path, store, IngestOptions(chunk_bytes=chunk_bytes))
    arrivals = read_requests(store).arrival_s
    expected = [4 * i + after for i in range(30) for after in (0, 3, 6.5)]
    assert (arrivals - arrivals[0]).tolist() == sorted(expected)
    assert report.requests == 90


@pytest.mark.parametrize(
    "hours", [range(24), range(1, 25), [f"{h:02}:00-{h + 1:02}:00" for h in range(24)]]
)
def test_hours_beside_dates_are_added(ingest, hours):
    rows = "".join(f"2025-06-{day},{hour},5\n" for day in (12, 13) for hour in hours)
    report = ingest("date,hour,requests\n" + rows)
    assert (report.start, report.end) == ("2025-06-12T00:00:00Z", "2025-06-14T00:00:00Z")
    assert (report.requests, report.bin_s) == (240, 3600)


@pytest.mark.parametrize("columns", [range(24), [f"{h:02}:00" for h in range(24)]])
def test_days_as_rows_and_hours_as_columns(ingest, columns):
    head = ",".join(map(str, ["date", *columns]))
    report = ingest(f"{head}\n2025-06-02,{','.join('5' * 24)}\n2025-06-03,{','.join('7' * 24)}\n")
    assert (report.requests, report.start) == (288, "2025-06-02T00:00:00Z")


@pytest.mark.parametrize("name", ["Total", "all", "*"])
def test_rows_of_totals_are_left_out(ingest, name):
    rows = "".join(
        f"{T0 + 60 * i},{m},{n}\n" for i in range(5) for m, n in (("a", 2 + i), (name, 2 + i))
    )
    report = ingest("time,model,requests\n" + rows)
    assert (report.requests, report.rejected) == (20, 5)
    assert ingest("time,model,requests\n" + rows, where="all").requests == 40


REQUEST = '{"model": "m", "prompt_tokens": 10, "completion_tokens": 20}'
FINISH = (
    "[2025-06-02 00:00:05] Finish: obj=X, out={'meta_info': {'finish_reason': {'type': 'stop'}, "
    "'prompt_tokens': 10, 'completion_tokens': 20, 'e2e_latency': 2.0}}"
)


@pytest.mark.parametrize("line", [REQUEST, "prompt_tokens=10 completion_tokens=20 model=m", FINISH])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda time, line: f'{time} {{pod="a"}} {line}',  # logcli
        lambda time, line: f"{time} stdout F {line}",  # container runtimes
        lambda time, line: f"{time}\t{line}",
        lambda time, line: json.dumps({"labels": {}, "line": line, "timestamp": time}),
        lambda time, line: json.dumps({"log": line + "\n", "stream": "stdout", "time": time}),
    ],
)
def test_lines_in_envelopes_of_collectors(ingest, line, wrap):
    times = [f"2025-06-02T00:00:{second:02}.250Z" for second in range(9)]
    report = ingest("\n".join(wrap(time, line) for time in times), "x.log")
    assert (report.requests, report.input_tokens, report.output_tokens) == (9, 90, 180)


@pytest.mark.parametrize("line", [REQUEST, FINISH])
def test_streams_of_loki(ingest, line):
    values = [[str((T0 + i) * 10**9), line] for i in reversed(range(9))]
    result = [{"stream": {"pod": pod}, "values": values} for pod in "ab"]
    data = {"status": "success", "data": {"resultType": "streams", "result": result}}
    report = ingest(json.dumps(data), "loki.json")
    assert (report.requests, report.input_tokens) == (18, 180)


@pytest.mark.parametrize(
    "names",
    ["Zeitstempel,Eingabe-Token,Ausgabe-Token", "horodatage,jetons_entrée,jetons_sortie",
     "fecha,tokens_entrada,tokens_salida", "时间,输入token数,输出token数"],
)  # fmt: skip
def test_names_in_other_languages(ingest, names):
    report = ingest(names + "\n" + "".join(f"{T0 + 7 * i},10,20\n" for i in range(30)))
    assert (report.requests, report.input_tokens, report.output_tokens) == (30, 300, 600)


@pytest.mark.parametrize("name", ["weight", "n", "batch_size"])
def test_rows_that_may_stand_for_several_requests_are_asked(ingest, tmp_path, store, name):
    head = f"{HEAD.strip()},{name}\n"
    content = head + "".join(f"{T0 + 7 * i},10,20,{1 + i % 3}\n" for i in range(30))
    choices = asked(ingest, content)
    reports = [reread(tmp_path, store, choice) for choice in choices.values()]
    assert sorted(report.sample for report in reports) == [1, 2]
    assert ingest(head + "".join(f"{T0 + 7 * i},10,20,1\n" for i in range(30))).sample == 1


@pytest.mark.parametrize(
    ("head", "cells"),
    [
        ("period", "2026-01-05 {0:02}:00-{1:02}:00"),
        ("period", "2026-01-05 {0:02}:00 - {1:02}:00"),
        ("window", "2026-01-05T{0:02}:00:00Z/2026-01-05T{1:02}:00:00Z"),
        ("day,interval", "2026-01-05,{0:02}:00-{1:02}:00"),
        ("date,time slot", "2026-01-05,{0:02}-{1:02}"),
        ("date,from,to", "2026-01-05,{0:02}:00,{1:02}:00"),
    ],
)
def test_ranges_of_hours_begin_bins(ingest, head, cells):
    rows = "".join(f"{cells.format(hour, hour + 1)},{hour % 5}\n" for hour in range(23))
    report = ingest(f"{head},requests\n{rows}")
    assert (report.bin_s, report.requests) == (3600, sum(hour % 5 for hour in range(23)))
    assert report.start_s == 1767571200


@pytest.mark.parametrize("model", ["a", "b", "c", "d", "e", "f"])
def test_counters_of_several_series_are_found(ingest, model):
    rows = "".join(f"{T0 + 60 * i},{m},{100 * i * n}\n" for i in range(30) for m, n in
                   ((model, 1), ("other", 3)))  # fmt: skip
    assert ("amounts", "counter") in asked(ingest, "time,model,requests\n" + rows)


@pytest.mark.parametrize(("rate", "one_in"), [("10%", 10), ("1/100", 100), ("1:20", 20)])
def test_sample_rates_as_text(ingest, rate, one_in):
    rows = "".join(f"2025-06-02 00:{i:02d}:{i:02d},10,20,{rate}\n" for i in range(30))
    assert ingest(HEAD.strip() + ",sample_rate\n" + rows).sample == pytest.approx(one_in)


@pytest.mark.parametrize(
    ("column", "load", "no_load"), [("cache", "MISS", "HIT"), ("status", "success", "failed")]
)
def test_bins_of_no_load_are_left_out(ingest, column, load, no_load):
    rows = [
        f"2025-06-02 {h:02d}:00,{kind},{count}\n"
        for h in range(12)
        for kind, count in ((load, 90 + h % 3), (no_load, 40))
    ]
    text = f"time,{column},requests\n" + "".join(rows)
    assert ingest(text).requests == sum(90 + h % 3 for h in range(12))
    assert ingest(text, where="all").requests == sum(130 + h % 3 for h in range(12))


def test_columns_of_tokens_are_no_counts_of_requests(ingest):
    """Rows at regular times may still be requests, and those at other times are never bins."""
    regular = "".join(f"2025-10-{day:02} 10:00,700,80\n" for day in range(1, 29))
    with pytest.raises(IngestError, match="input_tokens") as caught:
        ingest("time,Input,Output\n" + regular)
    assert not isinstance(caught.value, Ambiguous)
    wide = "".join(f"2025-10-{day:02},90,11\n" for day in range(1, 29))
    of_endpoints = ingest("time,chat_completions_requests,embeddings_requests\n" + wide, "wide.csv")
    assert of_endpoints.requests == 28 * (90 + 11)
    irregular = "".join(f"{second * second / 7},512,64\n" for second in range(1, 60))
    report = ingest("time,in_tok,out_tok\n" + irregular)
    assert (report.requests, report.input_tokens, report.output_tokens) == (59, 59 * 512, 59 * 64)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("time,requests\n" + rows(lambda i: f"{T0 + 300 * i},5", 100)
         + rows(lambda i: f"{T0 + 30_000 + 3600 * i},60", 40), "3600 s"),  # bins of two widths
        ('\ntime,"requests\n1,2\n', ""),  # a quote that is never closed
        ("INFO 02-31 10:00:00 loggers.py:123] Engine 000: Avg prompt throughput: 100.0 tokens/s, "
         "Avg generation throughput: 20.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs\n" * 3, ""),
        ("INFO 06-02 10:00:00 [logger.py:49] Received request a: params: SamplingParams(n=1)\n" * 9,
         "tokens of answers"),  # of prompts alone
        ("date,requests\n" + rows(lambda i: f"2025-{i + 1:02}-01,1000", 6), "Export"),  # months
        *((f"time,{name}\n" + rows(lambda i: f"{T0 + 60 * i},{i % 7}"), "")
          for name in ("running_requests", "requests (%)", "share of requests",
                       "remaining_requests", "requests\n,k")),  # the last: a line of units
        ("day,requests\n" + rows(lambda i: f"2026-01-{i + 1:02},{i + 1} ms", 28), ""),
        ("request_id," + HEAD
         + rows(lambda i: f"r{i // 3},{T0 + i // 3},10,{i % 3 * 20}", 60), "where=all"),
        (HEAD + rows(lambda i: f"{T0 + i},{'x' if i % 3 else 5},6", 60), "40 of 60 rows"),
    ],
)  # fmt: skip
def test_what_has_no_reading_is_refused(ingest, content, names):
    with pytest.raises(IngestError, match=names or None):
        ingest(content, "x.log" if content.startswith("INFO") else "t.csv")
