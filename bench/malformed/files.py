"""Files that are not what their readers expect."""

import gzip
import json
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta

import polars as pl
import zstandard

from bench.malformed.bombs import parquet, run_in_other_process
from bench.malformed.input import DEEP, LONG, Input

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930,2162,5\n"
NAMES = {  # as browsers send them
    "a name of 124 letters of two bytes": "ä" * 120 + ".csv",
    "a name of 250 letters of three bytes": "語" * 246 + ".csv",
    "a name of 255 letters": "a" * 251 + ".csv",
    "a name with a folder above": "../../../etc/passwd.csv",
    "a name with a line end": "a\nb.csv",
    "a name with a quote": 'a".csv',
    "a name of an ending only": ".csv",
}


def _columns() -> dict[str, pl.Series]:
    """Return a column of every type, by the name of the type."""
    moment = datetime(2024, 5, 10)
    far = pl.Series([2**62, 2**62 + 1])
    return {
        "nested lists": pl.Series([[[1]], [[2, 3]]]),
        "lists of words": pl.Series([["a"], ["b"]]),
        "lists of numbers": pl.Series([[1], [2]]),
        "structs": pl.Series([{"a": 1}, {"a": 2}]),
        "lists of structs": pl.Series([[{"key": "a", "value": 1}], []]),  # as maps are written
        "arrays": pl.Series([[1, 2], [3, 4]], dtype=pl.Array(pl.Int64, 2)),
        "durations": pl.Series([timedelta(seconds=1), timedelta(days=400_000)]),
        "times of day": pl.Series([time(1, 2), time(23, 59)]),
        "binary": pl.Series([b"\xff\xfe", b"\x80"]),
        "binary that is text": pl.Series([b"2024-05-10 00:00:00", b"5"]),
        "nothing": pl.Series([None, None]),
        "truth": pl.Series([True, False]),
        "dates": pl.Series([date(2024, 5, 10), date(1, 1, 1)]),
        "dates far off": pl.Series([date(9999, 12, 31), date(2024, 5, 10)]),
        "moments in us far off": far.cast(pl.Datetime("us")),
        "moments in ms far off": far.cast(pl.Datetime("ms")),
        "moments with a zone": pl.Series([moment, moment]).dt.replace_time_zone("Asia/Tokyo"),
        "moments before 1970": pl.Series([datetime(1900, 1, 1), moment]),
        "categories": pl.Series(["1", "2"], dtype=pl.Categorical),
        "decimals": pl.Series(["1.5", "2.25"]).cast(pl.Decimal(20, 2)),
        "floats beyond": pl.Series([float("inf"), float("nan")]),
        "unsigned of 64 bits": pl.Series([2**64 - 1, 1], dtype=pl.UInt64),
    }


def parquet_types() -> Iterator[Input]:
    good = {
        "timestamp": pl.Series([datetime(2024, 5, 10), datetime(2024, 5, 11)]),
        "input_tokens": pl.Series([5, 6]),
        "output_tokens": pl.Series([7, 8]),
        "model": pl.Series(["a", "b"]),
        "hash_ids": pl.Series([[1, 2], [3]]),
    }
    for where in good:
        for name, column in _columns().items():
            yield Input(
                "Parquet columns",
                f"{name} as {where}",
                lambda doors, where=where, column=column: doors.ingest(  # type: ignore[misc]
                    "a.parquet", parquet({**good, where: column})
                ),
            )
    counts = {"time": good["timestamp"], "requests": pl.Series([1.0, 2.0])}
    for name, column in _columns().items():
        yield Input(
            "Parquet columns",
            f"{name} as requests of a demand file",
            lambda doors, column=column: doors.ingest(  # type: ignore[misc]
                "a.parquet", parquet({**counts, "requests": column})
            ),
        )
    full = parquet(good)
    for cut in (4, 20, len(full) // 2, len(full) - 1):
        yield Input(
            "Parquet columns",
            f"cut after {cut} bytes",
            lambda doors, cut=cut: doors.ingest("a.parquet", full[:cut]),  # type: ignore[misc]
        )
    for place in range(8, len(full), len(full) // 24):
        spoiled = full[:place] + bytes([full[place] ^ 0xFF]) + full[place + 1 :]
        yield Input(
            "Parquet columns",
            f"byte {place} turned round",
            lambda doors, spoiled=spoiled: doors.ingest("a.parquet", spoiled),  # type: ignore[misc]
        )


def texts() -> Iterator[Input]:
    head, row = AZURE.split(b"\n")[:2]
    variants = {
        "nothing": b"",
        "a newline": b"\n",
        "newlines": b"\n" * 100_000,
        "a header alone": head,
        "NUL bytes": AZURE + b"\0\0\0",
        "not UTF-8": AZURE + b"\xff\xfe,1,1\n",
        "UTF-16": AZURE.decode().encode("utf-16"),
        "an open quote": AZURE + b'"2024,1,1\n' * 3,
        "fields that are missing": AZURE + b"2024-05-10\n",
        "too many fields": AZURE + row + b",1,2,3\n",
        "a number of 5,000 digits": AZURE + b"2024-05-10 00:00:01," + LONG.encode() + b",1\n",
        "infinite": AZURE + b"2024-05-10 00:00:01,inf,1\n",
        "not a number": AZURE + b"2024-05-10 00:00:01,NaN,1\n",
        "negative": AZURE + b"2024-05-10 00:00:01,-1,1\n",
        "the year 0": head + b"\n0000-00-00 00:00:00,1,1\n",
        "the year 9999": head + b"\n9999-12-31 23:59:59,1,1\n",
        "an offset of 99 hours": head + b"\n2024-05-10 00:00:00+99:99,1,1\n",
        "an image": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
        "a web page": b"<!doctype html><p>Not found",
        "a column of 20 kB": b"a" * 20_000 + b",b\n1,2\n",
        "3,000 columns": b",".join(b"c%d" % i for i in range(3000)) + b"\n1\n",
        "the same column twice": b"timestamp,timestamp,input_tokens,output_tokens\n1,2,3,4\n",
        "formulas": AZURE.replace(b"ContextTokens", b"=cmd|' /C calc'!A0"),
    }
    for name, content in variants.items():
        for more in ((), ("--strict",)):
            yield Input(
                "CSV",
                f"{name}{' read strictly' if more else ''}",
                lambda doors, content=content, more=more: doors.ingest(  # type: ignore[misc]
                    "a.csv", content, *more
                ),
            )
    line = {"timestamp": 1, "input_length": 5, "output_length": 6, "hash_ids": [1, 2]}
    objects = {
        "an array": b"[1, 2]",
        "a number": b"7",
        "nested deep": b'{"timestamp": ' + b"[" * DEEP,
        "an object nested deep": b'{"timestamp": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        "ids that are words": json.dumps({**line, "hash_ids": ["a"]}).encode(),
        "ids beyond 64 bits": json.dumps({**line, "hash_ids": [2**70]}).encode(),
        "ids nested": json.dumps({**line, "hash_ids": [[1]]}).encode(),
        "a number of 5,000 digits": b'{"timestamp": ' + LONG.encode() + b"}",
        "infinity": b'{"timestamp": Infinity, "input_length": 1, "output_length": 1}',
        "a lone surrogate": b'{"timestamp": 1, "input_length": 1, "model": "\\ud800"}',
        "the same key twice": b'{"timestamp": 1, "timestamp": 2, "input_length": 1}',
        "cut short": json.dumps(line).encode()[:20],
        "a list where a time is": json.dumps({**line, "timestamp": [1]}).encode(),
    }
    for name, content in objects.items():
        yield Input(
            "JSON lines",
            name,
            lambda doors, content=content: doors.ingest(  # type: ignore[misc]
                "a.jsonl", json.dumps(line).encode() + b"\n" + content + b"\n"
            ),
        )
        yield Input(
            "JSON lines",
            f"{name}, alone",
            lambda doors, content=content: doors.ingest("a.jsonl", content),  # type: ignore[misc]
        )


def compressed_inputs() -> Iterator[Input]:
    body = AZURE + b"2024-05-10 00:00:01,5,6\n" * 200
    for ending, pack in (("gz", gzip.compress), ("zst", zstandard.ZstdCompressor().compress)):
        compressed = pack(body)
        variants = {
            "cut short": compressed[:-8],
            "its first bytes alone": compressed[:5],
            "turned round in the middle": compressed[: len(compressed) // 2]
            + bytes([compressed[len(compressed) // 2] ^ 0xFF])
            + compressed[len(compressed) // 2 + 1 :],
            "packed twice": pack(compressed),
            "rubbish after it": compressed + b"rubbish",
            "300 MB of one row": pack(AZURE + b"2024-05-10 00:00:01,5,6\n" * 12_500_000),
            "300 MB of newlines": pack(AZURE + b"\n" * 300_000_000),
            "300 MB of one line": pack(AZURE + b"1" * 300_000_000),
        }
        for name, content in variants.items():
            yield Input(
                f"Packed as {ending}",
                name,
                lambda doors, content=content, ending=ending: doors.ingest(  # type: ignore[misc]
                    f"a.csv.{ending}", content
                ),
            )
    yield Input(
        "Bombs",
        "2 M strings of 2 kB in Parquet",
        lambda d: d.ingest("a.parquet", run_in_other_process("wide")),
    )
    yield Input(
        "Bombs",
        "200,000 x 1,000 ids in Parquet",
        lambda d: d.ingest("a.parquet", run_in_other_process("ids")),
    )


def no_files() -> Iterator[Input]:
    commands = {
        "ingest": lambda path: ("ingest", path),
        "plan": lambda path: ("plan", path),
        "forecast": lambda path: ("forecast", path),
        "estimate": lambda path: ("estimate", "--rows", path),
        "export": lambda path: ("export", path, "--to", "csv"),
        "carbon": lambda path: ("carbon", path),
        "profiles": lambda path: ("profiles", "import", "--kind", "linear", path),
    }
    for name, arguments in commands.items():
        for what, path in {
            "/dev/zero": "/dev/zero",
            "/dev/null": "/dev/null",
            "a folder": "/tmp",
            "no file": "/nowhere/at/all.csv",
            "a path of 5,000 characters": "/" + "a" * 5000,
            "a path with a NUL": "a\0b",
        }.items():
            yield Input(
                "No files",
                f"{what} for {name}",
                lambda doors, arguments=arguments, path=path: doors.command(  # type: ignore[misc]
                    *arguments(path)
                ),
            )
        yield Input(
            "No files",
            f"a named pipe for {name}",
            lambda doors, arguments=arguments: doors.command(  # type: ignore[misc]
                *arguments(str(doors.pipe()))
            ),
        )


def file_names() -> Iterator[Input]:
    rows = b"model,gpu,isl,osl,concurrency\nllama-3.1-8b,H100,100,100,4\n"
    tuning = b"at_s,decodes,prefill_tokens,seconds\n1,4,0,0.01\n"
    for name, file in NAMES.items():
        for path, content, fields in (
            ("/estimate/rows/", rows, {}),
            ("/hardware/profiles/llama-2-70b:H100-SXM:tp4/tune/", tuning, {"keep_as": "mine"}),
            ("/traces/upload/", AZURE, {}),
            ("/hardware/calibrations/new/", tuning, {"format": "auto"}),
            ("/hardware/import/", b"gpus: []", {}),
            ("/api/v1/ingest/", AZURE, {}),
            ("/api/v1/calibrations/", tuning, {}),
        ):
            yield Input(
                "File names",
                f"{name} to {path}",
                lambda doors, path=path, file=file, content=content, fields=fields: doors.upload(  # type: ignore[misc]
                    path, file, content, **fields
                ),
            )


def kernel_files() -> Iterator[Input]:
    heads = {
        "own": "op,dtype,m,n,k,latency_us,gpu,source",
        "aic_gemm": "system,gemm_dtype,m,n,k,latency_ms",
        "aic_moe": "system,moe_dtype,num_tokens,topk,latency_ms,hidden_size,inter_size,"
        "num_experts,moe_tp_size,moe_ep_size",
        "vidur_mlp_ops": "gpu,model,num_tokens,tp,attn_pre_proj_ms",
        "vidur_network": "node_sku,collective,size_bytes,num_workers,devices_per_node,median_ms",
        "llmservingsim_v0_layers": "hardware,model,layer,input_tokens,latency_ns,tp",
        "llmservingsim_v0_attention": "hardware,model,kv_cache_size,attn_decode_ms,tp,n_embd,"
        "n_q_head,n_kv_head,batch_size,prefill_chunk_size,attn_prefill_ms",
        "llmservingsim_v1_layers": "hardware,model,layer,n,time_us,tp",
        "llmservingsim_v1_attention": "hardware,model,prefill_chunk,kv_decode,time_us,tp,"
        "n_decode,kv_prefill",
    }
    for format, head in heads.items():
        fields = head.count(",") + 1
        for name, cell in {
            "words": "x",
            "empty": "",
            "infinite": "inf",
            "negative": "-5",
            "nought": "0",
            "5,000 digits": LONG,
        }.items():
            content = f"{head}\n{','.join([cell] * fields)}\n".encode()
            yield Input(
                "Kernel files",
                f"{name} in every cell, {format}",
                lambda doors, content=content: doors.upload(  # type: ignore[misc]
                    "/api/v1/calibrations/", "kernels.csv", content
                ),
            )
            known = f"{head}\n{','.join(['H100', 'llama-3.1-8b', *[cell] * (fields - 2)])}\n"
            yield Input(
                "Kernel files",
                f"{name} in all but GPU and model, {format}",
                lambda doors, known=known: doors.upload(  # type: ignore[misc]
                    "/api/v1/calibrations/", "kernels.csv", known.encode()
                ),
            )
    for name, content in {
        "nested deep": b"[" * DEEP,
        "a number of 5,000 digits": b'[{"op": "gemm", "m": ' + LONG.encode() + b"}]",
        "cells that are lists": b'[{"op": ["gemm"], "dtype": {}, "latency_us": [1], "gpu": "a"}]',
        "a lone surrogate": b'[{"op": "\\ud800", "latency_us": 1, "gpu": "\\ud800"}]',
    }.items():
        yield Input(
            "Kernel files",
            f"{name}, JSON",
            lambda doors, content=content: doors.upload(  # type: ignore[misc]
                "/api/v1/calibrations/", "kernels.json", content
            ),
        )


def descriptions() -> Iterator[Input]:
    """Yield files that describe GPUs and models."""
    for name, content in {
        "hexadecimal": "gpus: [{name: a, memory_gb: 0x" + "f" * 5000 + "}]",
        "octal": "gpus: [{name: a, memory_gb: 0o" + "7" * 5000 + "}]",
        "binary": "models: [{name: a, layers: 0b" + "1" * 20_000 + "}]",
        "a name of 5,000 digits": f"gpus: [{{name: {LONG}}}]",
        "a name of hexadecimal digits": "models: [{name: 0x" + "f" * 5000 + "}]",
        "nested deep": "gpus: " + "[" * 5000,
        "JSON nested deep": '{"gpus": ' + "[" * DEEP,
        "a config of huge sizes": json.dumps({"model_type": "llama", "hidden_size": 10**39}),
        "a config of 5,000 digits": '{"model_type": "llama", "hidden_size": ' + LONG + "}",
        "words for sizes": '{"model_type": "llama", "hidden_size": "x"}',
        "lists for sizes": '{"model_type": "llama", "hidden_size": [1]}',
        "aliases": "gpus: &a [*a]",
    }.items():
        yield Input(
            "GPUs and models",
            name,
            lambda doors, content=content: doors.upload(  # type: ignore[misc]
                "/hardware/import/",
                "a.json" if content[0] == "{" else "a.yml",
                content.encode(),
                name="own",
            ),
        )
