"""Benchmark files as their tools write them, old and new, and the sentences for what is wrong."""

import gzip
import json

import numpy as np
import pytest
import yaml
import zstandard

from planner.errors import IngestError
from planner.inputs.ingest.benchmarks import read_benchmarks
from tests.shared_folder import PROFILES, needs_shared

needs_data = needs_shared(PROFILES)

# benchmarks/benchmark_serving.py of 2024 ("request_goodput:" with its colon), no concurrency limit
VLLM_OLD = {
    "date": "20240801-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B",
    "tokenizer_id": "meta-llama/Llama-3.1-8B", "num_prompts": 200, "request_rate": 4.0,
    "duration": 50.0, "completed": 200, "total_input_tokens": 102_400,
    "total_output_tokens": 25_600, "request_throughput": 4.0, "request_goodput:": None,
    "output_throughput": 512.0, "total_token_throughput": 2560.0, "mean_ttft_ms": 45.0,
    "median_ttft_ms": 40.0, "std_ttft_ms": 9.0, "p99_ttft_ms": 90.0, "mean_tpot_ms": 10.0,
    "median_tpot_ms": 9.5, "mean_itl_ms": 10.0, "median_itl_ms": 9.0,
}  # fmt: skip
# vllm bench serve --max-concurrency 16 --metadata tp=2 gpu=H100-SXM
VLLM_NEW = {
    **VLLM_OLD, "endpoint_type": "openai", "label": None, "tp": "2", "gpu": "H100-SXM",
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 16, "failed": 0,
    "request_goodput": None, "max_output_tokens_per_s": 900.0, "max_concurrent_requests": 20,
    "mean_e2el_ms": 1300.0, "median_e2el_ms": 1280.0,
}  # fmt: skip


def summary(mean, median):
    def one(scale):
        return {"mean": mean * scale, "median": median * scale, "count": 10, "percentiles": {}}

    return {"successful": one(1.0), "incomplete": one(0.5), "errored": one(0.0), "total": one(0.7)}


METRICS = {
    "requests_per_second": summary(2.0, 2.0),
    "request_concurrency": summary(7.6, 8.0),
    "request_latency": summary(3.9, 3.8),
    "prompt_token_count": summary(512.0, 512.0),
    "output_token_count": summary(128.0, 128.0),
    "time_to_first_token_ms": summary(60.0, 50.0),
    "time_per_output_token_ms": summary(31.0, 30.0),
    "inter_token_latency_ms": summary(30.5, 30.0),
    "output_tokens_per_second": summary(256.0, 250.0),
}
GUIDELLM_OLD = {  # 0.2: the model with the worker, the strategy under args
    "benchmarks": [{
        "type_": "generative_benchmark", "metrics": METRICS,
        "args": {"strategy": {"type_": "concurrent", "streams": 8}},
        "worker": {"type_": "generative", "backend_model": "Qwen/Qwen3-32B"},
        "extras": {"hardware": "H200", "tensor_parallel_size": 4},
    }]
}  # fmt: skip
GUIDELLM_NEW = {  # 0.6: config, and the model with the backend
    "metadata": {"version": 1, "guidellm_version": "0.6.0"},
    "args": {"backend_kwargs": {"model": "Qwen/Qwen3-32B"}},
    "benchmarks": [
        {"config": {"strategy": {"type_": "concurrent", "streams": 8},
                    "backend": {"model": "Qwen/Qwen3-32B"}}, "metrics": METRICS},
        {"config": {"strategy": {"type_": "constant", "rate": 2.0}}, "metrics": METRICS},
        {"config": {}, "metrics": {"inter_token_latency_ms": summary(0.0, 0.0)}},
    ],
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def run(content, name="bench.json", **options):
        data = content if isinstance(content, str) else json.dumps(content)
        raw = data.encode()
        if name.endswith(".gz"):
            raw = gzip.compress(raw)
        if name.endswith(".zst"):
            raw = zstandard.compress(raw)
        (tmp_path / name).write_bytes(raw)
        return read_benchmarks(tmp_path / name, **options)

    return run


def test_vllm_without_a_limit_counts_in_flight_by_little_s_law(read):
    benchmarks = read(VLLM_OLD, gpu="H100-SXM", tp=1)
    rows = benchmarks.rows
    assert (benchmarks.format, rows.rows) == ("vllm", 1)
    assert rows.model[0] == "meta-llama/Llama-3.1-8B"
    assert (rows.isl[0], rows.osl[0]) == (512, 128)
    assert rows.concurrency[0] == pytest.approx(4.0 * (0.045 + 127 * 0.010))
    assert (rows.ttft_s[0], rows.tbt_s[0]) == pytest.approx((0.040, 0.0095))
    assert np.isnan(rows.batch[0])
    assert [key for key, _ in rows.arrangements()] == [("meta-llama/Llama-3.1-8B", "H100-SXM", 1)]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl.gz", "a.json.zst"])
def test_several_runs_in_one_file(read, name):
    lines = "\n".join(json.dumps(run) for run in (VLLM_OLD, VLLM_NEW))
    assert read(lines, name).rows.concurrency[1] == 16
    assert read([VLLM_OLD, VLLM_NEW], name).rows.rows == 2


def test_guidellm_of_both_layouts(read):
    old, new = read(GUIDELLM_OLD).rows, read(GUIDELLM_NEW)
    assert new.format == "guidellm"
    assert "Benchmark 3" in new.notes[0]
    assert new.rows.concurrency.tolist() == [8, 7.6]  # the second has a rate, not streams
    assert (old.gpu[0], old.tp[0]) == ("H200", 4)
    for rows in (old, new.rows):
        assert set(rows.model) == {"Qwen/Qwen3-32B"}
        assert (rows.isl[0], rows.osl[0], rows.e2e_s[0]) == (512, 128, 3.8)
        assert (rows.ttft_s[0], rows.tbt_s[0], rows.throughput[0]) == (0.05, 0.03, 256)


def test_the_wva_s_own_header(read):
    text = "mm,hw,prec,bb,itl,thp,dp,tp\nm,A100,fp16,4,10.6,755,2,1\nm,A100,fp8,8,11.6,690,1,1\n"
    benchmarks = read(text, "own.csv")
    assert benchmarks.format == "wva"
    rows = benchmarks.rows
    assert (rows.model.tolist(), rows.gpu[0], rows.precision.tolist()) == (
        ["m", "m"], "A100", ["fp16", "fp8"],
    )  # fmt: skip
    assert rows.tbt_s == pytest.approx([0.0106, 0.0116])
    assert rows.throughput.tolist() == [377.5, 690]  # of one of two parallel instances
    assert any("(dp)" in note for note in benchmarks.notes)


def test_plain_csv_in_any_unit(read):
    text = "Model;GPU".replace(";", ",") + ",TP,Batch size,ISL,OSL,Prefill (ms),TBT (us),e2e_s\n"
    rows = read(text + "m,g,2,4,100,50,40,9000,0.49\n,,,2,100,50,,8000,\n", "a.csv", model="n").rows
    assert (rows.prefill_s[0], rows.tbt_s[0], rows.e2e_s[0]) == pytest.approx((0.04, 0.009, 0.49))
    assert np.isnan([rows.prefill_s[1], rows.tp[1]]).all()
    assert rows.model.tolist() == ["m", "n"]


def test_the_speed_of_one_user_is_the_time_between_tokens(read):
    text = "model,gpu,concurrency,isl,osl,ttft_ms,tokens_per_second_per_user,cost\n"
    read_so = read(text + "m,g,8,100,50,40,50,3\nm,g,16,100,50,60,,3\n", "a.csv")
    assert read_so.rows.tbt_s[0] == pytest.approx(0.02) and np.isnan(read_so.rows.tbt_s[1])
    assert "cost" in read_so.notes[-1]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_tables_of_other_countries(read, mark):
    rows = (["model", "gpu", "concurrency", "isl", "osl", "ttft_ms", "tpot_ms"], ["m", "g"])
    cells = ["8", "1024", "128", "41,5", "9,25"]
    text = mark.join(rows[0]) + "\n" + mark.join([*rows[1], *cells]) + "\n"
    found = read("Run of Monday\n" + text, "a.csv").rows
    assert (found.ttft_s[0], found.tbt_s[0]) == pytest.approx((0.0415, 0.00925))


@needs_data
def test_the_published_tables_read_as_what_they_are():
    splitwise = read_benchmarks(PROFILES / "splitwise_perf_model.csv")
    assert (splitwise.format, splitwise.rows.rows) == ("splitwise", 1260)
    assert splitwise.rows.tbt_s.min() > 0.02  # llama2-70b: 28 ms at best
    assert splitwise.rows.tbt_s.max() < 0.2
    assert np.isfinite(splitwise.rows.power_share).sum() == 260
    # 64 sequences of Llama-2-70B do not fit beside its weights on two 80 GB GPUs
    parts = ~splitwise.rows.ran_as_one_batch
    assert set(zip(splitwise.rows.batch[parts], splitwise.rows.tp[parts], strict=True)) == {(64, 2)}
    assert parts.sum() == 15
    # asked for 8,192 tokens, most engines stopped far earlier
    asked = splitwise.rows.osl == 8192
    assert np.median(splitwise.rows.generated_tokens[asked]) < 1000
    sageserve = read_benchmarks(PROFILES / "sageserve_llama3_perf.csv")
    assert (sageserve.format, sageserve.rows.rows) == ("sageserve", 400)
    assert 0.003 < np.median(sageserve.rows.tbt_s) < 0.02  # 3B and 8B models
    assert np.isnan(sageserve.rows.prefill_s[sageserve.rows.batch > 1]).all()
    assert sageserve.rows.ran_as_one_batch.all()
    prefill = read_benchmarks(PROFILES / "sageserve_llama31_8b_tp4_prefill.csv", tp=4)
    assert (prefill.rows.batch == 1).all()
    assert prefill.rows.rows == 2715


HEADER = "model,gpu,tp,batch,isl,osl,prefill_ms,tbt_ms\n"
ROW = "m,g,1,1,10,10,5,5\n"


@pytest.mark.parametrize(
    ("content", "name", "options", "words"),
    [
        ("", "a.csv", {}, "a.csv is empty"),
        (HEADER, "a.csv", {}, "no rows"),
        (HEADER + "m,g,1,1,10\n", "a.csv", {}, "line 2: wrong number of fields"),
        (HEADER + ROW + "m,g,1,0,10,10,5,5\n", "a.csv", {}, "line 3: batch is '0'"),
        (HEADER + "m,g,1,1,10,10,fast,5\n", "a.csv", {}, "prefill_ms is 'fast'"),
        (HEADER + "m,g,1,1,10,10,5,nan\n", "a.csv", {}, "tbt_ms is 'nan'"),
        (HEADER + "m,g,1,1,10,10,5,inf\n", "a.csv", {}, "tbt_ms is 'inf'"),
        (HEADER + "m,g,1,1,10,10,5,0\n", "a.csv", {}, "above 0"),
        ("batch,tbt\n1,2\n", "a.csv", {}, "does not say its unit. Call it tbt_ms or tbt_s"),
        ("batch,colour\n1,2\n", "a.csv", {}, "no column of times"),
        ("day," + ",".join(map(str, range(1, 25))) + "\n" + "1," * 24 + "1\n", "a.csv", {},
         "no column of times"),  # hours of a day as columns
        ("model,tbt_ms\nm,2\n", "a.csv", {}, "batch, concurrency or isl"),
        (HEADER + ROW, "a.csv", {"format": "vllm"}, "is not JSON"),
        (HEADER + ROW, "a.csv", {"format": "splitwise"}, "it lacks"),
        (HEADER + ROW, "a.csv", {"format": "excel"}, "no benchmark format 'excel'"),
        ("{", "a.json", {}, "a.json is not JSON"),
        ("[1, 2]", "a.json", {}, "one JSON object per benchmark"),
        ("{}", "a.json", {}, "no completed or median_tpot_ms"),
        ({**VLLM_OLD, "completed": 0}, "a.json", {}, "no request was completed"),
        ({**VLLM_OLD, "median_tpot_ms": -1}, "a.json", {}, "median_tpot_ms is -1"),
        ({**VLLM_OLD, "median_tpot_ms": "x"}, "a.json", {}, "median_tpot_ms is 'x'"),
        ([VLLM_OLD, {**VLLM_OLD, "completed": None}], "a.json", {}, "result 2 has no completed"),
        (VLLM_OLD, "a.json", {"format": "guidellm"}, "looks like the JSON of vllm"),
        ({"benchmarks": [{"x": 1}]}, "a.json", {}, "has no completed"),
        ("PK\x03\x04zip", "a.csv", {}, "a ZIP archive"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(read, content, name, options, words):
    with pytest.raises(IngestError) as caught:
        read(content, name, **options)
    message = str(caught.value)
    assert words in message
    assert message.endswith(".")
    assert "\n" not in message


LOG = "hardware,model,input_toks,output_toks,arrival_s,ttft_ms,tpot_ms,e2e_ms"


def test_a_log_of_requests_is_summed_up_by_run(tmp_path):
    path = tmp_path / "requests.csv"
    lines = ["G,m,100,11,0,50,10,1000", "G,m,300,21,1,70,30,2000", "H,m,10,2,5,5,5,10"]
    path.write_text("\n".join([LOG, *lines]) + "\n")
    benchmarks = read_benchmarks(path)
    rows = benchmarks.rows
    assert rows.gpu.tolist() == ["G", "H"]
    assert (rows.isl[0], rows.osl[0]) == (200, 16)
    assert rows.ttft_s[0] == pytest.approx(0.06) and rows.tbt_s[0] == pytest.approx(0.02)
    # 3 s of requests in a run from 0 s to 3 s
    assert rows.concurrency[0] == pytest.approx(1.0)
    assert rows.throughput[0] == pytest.approx(32 / 3)
    assert "3 requests were summed up as 2 runs" in benchmarks.notes[0]
    path.write_text(LOG.replace(",e2e_ms", "") + "\nG,m,100,11,0,50,10\n")
    assert read_benchmarks(path).rows.e2e_s.tolist() == pytest.approx([0.15])
    path.write_text(LOG.replace(",e2e_ms", "").replace("tpot", "x") + "\nG,m,100,11,0,50,10\n")
    with pytest.raises(IngestError, match="tbt_s"):
        read_benchmarks(path)


def test_fitted_parameters_are_no_measurements(tmp_path):
    path = tmp_path / "wva.csv"
    path.write_text("model,acc,alpha_ms,beta_ms_per_seq,max_batch_size\nm,G,7,0.1,64\n")
    with pytest.raises(IngestError, match="alpha_ms to delta_ms under profiles"):
        read_benchmarks(path)


@needs_data
def test_the_log_of_requests_of_vllm_runs():
    rows = read_benchmarks(PROFILES / "llmservingsim_vllm_measured_requests.csv").rows
    assert rows.rows == 4
    assert (rows.decoding <= rows.concurrency).all()


def test_json_files_joined_by_cat_are_read(tmp_path):
    path = tmp_path / "runs.json"
    runs = [json.dumps(VLLM_NEW | {"max_concurrency": c}, indent=1) for c in (2, 4)]
    for between in ("", "\n", " \n\n"):
        path.write_text(between.join(runs) + between)
        assert read_benchmarks(path).rows.concurrency.tolist() == [2, 4]
    path.write_text(runs[0] + runs[1][:-5])
    with pytest.raises(IngestError, match="is not JSON"):
        read_benchmarks(path)


def test_results_of_declared_tools(tmp_path):
    stats = {"avg": 130.0, "p50": 120.0}
    summary = {
        "time_to_first_token": stats, "inter_token_latency": {"avg": 11.0, "p50": 10.0},
        "request_throughput": {"avg": 4.0}, "request_latency": {"avg": 5000.0, "p50": 4900.0},
        "input_sequence_length": {"avg": 1024.0}, "output_sequence_length": {"avg": 400.0},
        "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 16}},
    }  # fmt: skip
    path = tmp_path / "aiperf.json"
    path.write_text(json.dumps(summary))
    read = read_benchmarks(path)
    assert (read.format, read.rows.model[0], read.rows.concurrency[0]) == ("aiperf", "m", 16)
    assert (read.rows.ttft_s[0], read.rows.tbt_s[0]) == pytest.approx((0.12, 0.01))
    del summary["input_config"]["loadgen"]  # in flight by Little's law
    path.write_text(json.dumps(summary))
    assert read_benchmarks(path).rows.concurrency[0] == pytest.approx(20)


def test_a_tool_that_counts_the_first_token_among_the_gaps(tmp_path):
    run = {
        "num_concurrent_requests": 5, "results_ttft_s_mean": 0.5, "model": "m",
        "results_end_to_end_latency_s_mean": 2.5, "results_number_output_tokens_mean": 101,
        "results_inter_token_latency_s_mean": 0.0248, "results_number_input_tokens_mean": 550,
    }  # fmt: skip
    path = tmp_path / "llmperf.json"
    path.write_text(json.dumps({"5": run, "10": run | {"num_concurrent_requests": 10}}))
    rows = read_benchmarks(path).rows
    assert rows.tbt_s.tolist() == pytest.approx([0.02, 0.02])
    assert rows.concurrency.tolist() == [5, 10]


def test_replicas_behind_a_gateway_share_the_load(tmp_path):
    run = {
        "completed": 100, "total_input_tokens": 1000, "total_output_tokens": 1100,
        "request_throughput": 8.0, "median_ttft_ms": 50, "mean_ttft_ms": 50,
        "median_tpot_ms": 20, "mean_tpot_ms": 20, "output_throughput": 88.0,
    }  # fmt: skip
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(run | {"decode_replicas": "4"}))
    one = read_benchmarks(path)
    path.write_text(json.dumps(run))
    assert one.rows.concurrency[0] == pytest.approx(read_benchmarks(path).rows.concurrency[0] / 4)
    assert one.rows.throughput[0] == 22 and one.notes


def test_a_log_of_requests_of_an_engine(tmp_path):
    lines = [
        {"input_toks": 100, "output_toks": 11, "arrival_time": 1.7e9, "queued_ts": 10.0 + i,
         "scheduled_ts": 10.5 + i, "first_token_ts": 11.0 + i, "last_token_ts": 11.2 + i}
        for i in range(8)
    ]  # fmt: skip
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read_benchmarks(path).rows
    assert (rows.ttft_s[0], rows.tbt_s[0]) == pytest.approx((1.0, 0.02))
    assert rows.concurrency[0] == pytest.approx(8 * 0.7 / (18.2 - 10.5))


SUMMARY = """\
================================================
MLPerf Results Summary
================================================
SUT name : llama2-70b-Server-SUT
Scenario : Server
Completed samples per second    : 100.00
Completed tokens per second: 30000.00
Result is : VALID

Additional Stats
Mean latency (ns)               : 40000000000
50.00 percentile latency (ns)   : 33000000000
Mean First Token latency (ns)               : 960000000
50.00 percentile first token latency (ns)   : 950000000
Mean Time to Output Token (ns)               : 126000000
50.00 percentile time to output token (ns)   : 132000000
"""
DETAIL = {
    "result_completed_samples_per_sec": 100.0, "result_mean_latency_ns": 40e9,
    "result_first_token_mean_latency_ns": 960e6, "result_time_to_output_token_mean": 132e6,
    "result_completed_tokens_per_second": 30000.0,
    "result_first_token_50.00_percentile_latency_ns": 950e6,
}  # fmt: skip


@pytest.mark.parametrize("log", ["summary", "detail"])
def test_mlperf_s_logs_of_the_server_scenario(tmp_path, log):
    detail = (f":::MLLOG {json.dumps({'key': k, 'value': v})}\n" for k, v in DETAIL.items())
    path = tmp_path / f"mlperf_log_{log}.txt"
    path.write_text(SUMMARY if log == "summary" else "".join(detail))
    rows = read_benchmarks(path, isl=294).rows
    assert (rows.ttft_s[0], rows.tbt_s[0]) == pytest.approx((0.95, 0.132))
    assert (rows.isl[0], rows.osl[0], rows.throughput[0]) == (294, 300, 30000)
    assert rows.concurrency[0] == pytest.approx(100 * 40)


def test_mlperf_without_times_of_tokens_is_refused(tmp_path):
    path = tmp_path / "mlperf_log_summary.txt"
    path.write_text("MLPerf Results Summary\nScenario : Offline\nTokens per second: 9\n")
    with pytest.raises(IngestError, match="Offline"):
        read_benchmarks(path)


@pytest.mark.parametrize("units", ["s", "ms"])
def test_a_report_of_llm_d_in_its_own_units(tmp_path, units):
    scale = 1000 if units == "ms" else 1

    def times(seconds):
        return {"units": units, "mean": seconds * scale, "p50": seconds * scale}

    engine = {"kind": "inference_engine", "replicas": 2, "model": {"name": "m"},
              "accelerator": {"model": "H100", "count": 2, "parallelism": {"tp": 2}}}  # fmt: skip
    aggregate = {
        "latency": {"time_to_first_token": times(0.1), "time_per_output_token": times(0.02),
                    "request_latency": times(2.1)},
        "requests": {"total": 90, "failures": 10, "input_length": {"mean": 1000},
                     "output_length": {"mean": 101}},
        "throughput": {"request_rate": {"mean": 4}, "output_token_rate": {"mean": 404}},
    }  # fmt: skip
    report = {
        "version": "0.2", "run": {"uid": "u"},
        "scenario": {"stack": [{"standardized": {"kind": "generic"}}, {"standardized": engine}]},
        "results": {"request_performance": {"aggregate": aggregate}},
    }  # fmt: skip
    path = tmp_path / "report.yaml"
    path.write_text(yaml.safe_dump(report))
    read = read_benchmarks(path)
    assert (read.rows.model[0], read.rows.gpu[0], read.rows.tp[0]) == ("m", "H100", 2)
    assert (read.rows.ttft_s[0], read.rows.tbt_s[0]) == pytest.approx((0.1, 0.02))
    assert read.rows.concurrency[0] == pytest.approx(4 * 2.1 / 2)  # of one of two replicas
    assert len(read.notes) >= 2  # failed requests, and replicas
    path.with_suffix(".json").write_text(json.dumps(report))
    again = read_benchmarks(path.with_suffix(".json")).rows
    assert again.throughput[0] == read.rows.throughput[0] == 202


def test_results_in_a_table_are_read_as_in_json(read):
    columns = [key for key, value in VLLM_NEW.items() if value is not None]
    lines = [",".join(columns), ",".join(str(VLLM_NEW[key]) for key in columns)]
    table, whole = read("\n".join(lines) + "\n", "runs.csv"), read(VLLM_NEW)
    assert table.format == "vllm"
    for name in ("isl", "osl", "concurrency", "ttft_s", "tbt_s", "tp", "throughput"):
        assert getattr(table.rows, name)[0] == getattr(whole.rows, name)[0]


def test_a_table_of_metrics_of_genai_perf(read):
    text = (
        "Metric,avg,p50\nTime To First Token (ms),130,120\nInter Token Latency (ms),11,10\n"
        "Request Latency (ms),2500,2400\nInput Sequence Length (tokens),550,550\n"
        "Output Sequence Length (tokens),200,200\n\nMetric,Value\n"
        "Request Throughput (requests/sec),8\nOutput Token Throughput (tokens/sec),1600\n"
    )
    rows = read(text, "profile_export_genai_perf.csv").rows
    assert (rows.ttft_s[0], rows.tbt_s[0]) == pytest.approx((0.12, 0.01))
    assert (rows.isl[0], rows.osl[0], rows.concurrency[0]) == (550, 200, 20)


def test_a_printed_result_is_read_like_its_json(tmp_path):
    block = (
        "Maximum request concurrency: 32\n"
        "============ Serving Benchmark Result ============\n"
        "Successful requests:                     320\n"
        "Benchmark duration (s):                  160.0\n"
        "Total input tokens:                      327680\n"
        "Total generated tokens:                  81920\n"
        "Request throughput (req/s):              2.0\n"
        "---------------Time to First Token----------------\n"
        "Median TTFT (ms):                        199.88\n"
        "-----Time per Output Token (excl. 1st token)------\n"
        "Median TPOT (ms):                        14.03\n"
        "==================================================\n"
    )
    path = tmp_path / "bench.log"
    path.write_text(block + block.replace("concurrency: 32", "concurrency: 64"))
    rows = read_benchmarks(path, model="llama-3.1-8b", gpu="H100-SXM", tp=1).rows
    assert rows.concurrency.tolist() == [32, 64]
    assert (rows.isl[0], rows.osl[0]) == (1024, 256)
    assert (rows.ttft_s[0], rows.tbt_s[0]) == pytest.approx((0.19988, 0.01403))


def metric(unit, value):
    return {"unit": unit, "avg": value, "p50": value}


@pytest.mark.parametrize(("unit", "scale"), [("ms", 1000), ("s", 1), ("sec", 1)])
def test_the_unit_beside_a_time_counts(read, unit, scale):
    times = {"time_to_first_token": 0.25, "inter_token_latency": 0.02, "request_latency": 3.1}
    result = {name: metric(unit, seconds * scale) for name, seconds in times.items()}
    rows = read(result | {"request_throughput": metric("requests/sec", 2.5)}).rows
    assert (rows.ttft_s[0], rows.tbt_s[0], rows.e2e_s[0]) == pytest.approx((0.25, 0.02, 3.1))
    table = [f"{name.replace('_', ' ').title()} ({unit}),{seconds * scale},{seconds * scale}"
             for name, seconds in times.items()]  # fmt: skip
    text = "Metric,avg,p50\n" + "\n".join(table) + "\n\nMetric,Value\nRequest Throughput,2.5\n"
    rows = read(text, "a.csv").rows
    assert (rows.ttft_s[0], rows.tbt_s[0], rows.e2e_s[0]) == pytest.approx((0.25, 0.02, 3.1))


@pytest.mark.parametrize("tpot", ["0.01", "9000"])
def test_times_that_no_engine_has_are_refused(read, tpot):
    with pytest.raises(IngestError):
        read(HEADER.replace("prefill", "ttft") + f"m,g,1,1,10,10,5,{tpot}\n", "a.csv")


def test_requests_that_did_not_complete_failed(read):
    rows = read({**VLLM_NEW, "num_prompts": 3 * VLLM_NEW["completed"], "failed": None}).rows
    assert rows.failed[0] == 2 * VLLM_NEW["completed"]


def test_names_of_columns_are_no_patterns(read):
    rows = read(HEADER.strip() + ",*,^.*$\n" + ROW.strip() + ",7,8\n", "a.csv").rows
    assert (rows.rows, rows.isl[0], rows.tbt_s[0]) == (1, 10, 0.005)
