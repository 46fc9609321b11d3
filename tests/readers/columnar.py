# SPDX-License-Identifier: Apache-2.0
"""Read jsonl, arrow and parquet with column libraries, and compare the contents of the three files in each library.

    columnar.py FOLDER

FOLDER holds data.jsonl, data.arrow, data.parquet and truth.json of one export. Prints one line for each library, `ok|skip|FAIL name
detail`, and exits 1 if any line has FAIL. The libraries must find the same columns, types and values in all three files.
"""
import base64
import json
import os
import sys
import tempfile

import read
from read import Skip, Wrong, load, need


def schema_of(folder):
    """The schema at the start of the data.arrow stream; an empty export over HTTP has the same schema."""
    ipc = load("base", "pyarrow", "ipc")
    with ipc.open_stream(os.path.join(folder, "data.arrow")) as stream:
        return stream.schema


def rows_of(table):
    """Rows as Python values by key, with floats rounded to float32."""
    rows = table.to_pylist()
    keys = [row["row_key"] for row in rows]
    need(len(set(keys)) == len(keys), "two rows have one row_key")
    return rows


def close(a, b):
    """Equal except for the last digits of a float64, which the JSON parser of datasets rounds."""
    return a == b or (isinstance(a, float) and isinstance(b, float) and abs(a - b) <= 1e-12 * abs(a))


def with_bytes(rows, name):
    """The rows with the data of token columns as bytes: JSON has them in base64."""
    for row in rows if name == "jsonl" else []:
        for column in row["columns"] or []:
            column["data"] = base64.b64decode(column["data"])
    return rows


def agree(tables):
    """All tables hold the same rows."""
    (first, rows), *others = [(name, with_bytes(rows_of(table), name)) for name, table in tables.items()]
    for name, found in others:
        need(len(found) == len(rows), "%s has %d rows, %s %d", name, len(found), first, len(rows))
        for i, (a, b) in enumerate(zip(found, rows)):
            need(list(a) == list(b), "columns of %s and %s differ: %s", name, first, set(a) ^ set(b))
            for key in a:
                need(close(a[key], b[key]), "row %d: %s is %.80r in %s, %.80r in %s", i, key, a[key], name, b[key], first)
    return len(rows)


def paths(folder):
    return {name: os.path.join(folder, "data." + name) for name in ("jsonl", "arrow", "parquet")}


def read_pyarrow(folder):
    """pyarrow, and pyarrow.json with the schema of the stream."""
    ipc, pq = load("base", "pyarrow", "ipc"), load("base", "pyarrow.parquet", "read_table")
    load("base", "pyarrow.json", "read_json")
    import pyarrow.json as pj

    at, schema = paths(folder), schema_of(folder).remove_metadata()
    block = pj.ReadOptions(block_size=max(1 << 20, 2 * os.path.getsize(at["jsonl"])))
    with ipc.open_stream(at["arrow"]) as stream:
        arrow = stream.read_all()
    tables = {"arrow": arrow, "parquet": pq(at["parquet"]),
              "jsonl": pj.read_json(at["jsonl"], block, pj.ParseOptions(explicit_schema=schema))}
    for name, table in tables.items():
        table.validate(full=True)
        # with an explicit schema types are compared, but not nullability
        types = {field.name: field.type for field in table.schema}
        need(equal(types, schema), "%s has other types: %s", name, types)
    # without a schema only names are compared: pyarrow builds an invalid array from a list that starts with null
    inferred = pj.read_json(at["jsonl"], block)
    need(inferred.column_names == schema.names, "without a schema jsonl has the columns %s", inferred.column_names)
    meta = {key.decode(): value.decode() for key, value in (arrow.schema.metadata or {}).items()}
    footer = {key.decode(): value.decode() for key, value in (tables["parquet"].schema.metadata or {}).items()}
    for member in ("tokentap_schema_version", "tokentap_version", "entropy_unit", "refused"):
        need(meta.get(member) and meta[member] == footer.get(member), "metadata: %s is %r and %r", member, meta.get(member), footer.get(member))
    versions = {row["schema_version"] for row in rows_of(arrow)}
    need(versions <= {int(meta["tokentap_schema_version"])}, "rows have the versions %s", versions)
    return "%d rows, %d columns" % (agree(tables), len(schema))


def equal(types, schema):
    """Equal except for the names and nullability of items."""
    import pyarrow as pa

    def plain(kind):
        if pa.types.is_list(kind):
            return ("list", plain(kind.value_type))
        if pa.types.is_struct(kind):
            return ("struct", [(kind.field(i).name, plain(kind.field(i).type)) for i in range(kind.num_fields)])
        return str(kind)

    return list(types) == schema.names and all(plain(types[f.name]) == plain(f.type) for f in schema)


def read_datasets(folder):
    """Hugging Face's loaders: json with features and without, and parquet."""
    load_dataset, features = load("columnar", "datasets", "load_dataset"), load("columnar", "datasets", "Features")
    at, schema = paths(folder), schema_of(folder).remove_metadata()
    with tempfile.TemporaryDirectory() as cache:
        def take(kind, name, **more):
            return load_dataset(kind, data_files=at[name], split="train", cache_dir=cache, **more)

        parquet, detail = take("parquet", "parquet"), ""
        need(parquet.features == features.from_arrow_schema(schema), "features differ: %s", parquet.features)
        tables = {"parquet": parquet.data.table}
        import datasets

        if int(datasets.__version__.split(".")[0]) >= 5:
            found = take("json", "jsonl", features=parquet.features)
            need(found.features == parquet.features, "features differ: %s", found.features)
            inferred = take("json", "jsonl")
            need(inferred.column_names == schema.names, "without features jsonl has the columns %s", inferred.column_names)
            tables["jsonl"] = found.data.table
        else:
            detail = ", jsonl not tried: datasets %s reads lists that begin with null wrong" % datasets.__version__
        rows = agree(tables)
        if importable("torch"):
            ids = parquet.with_format("torch")[0]["token_ids"]
            detail += ", ids for torch %s" % ids.dtype
            need(str(ids.dtype) == "torch.int64", "ids for torch are %s", ids.dtype)
    return "%d rows, %d features%s" % (rows, len(schema), detail)


def importable(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def read_polars(folder):
    read_ndjson = load("columnar", "polars", "read_ndjson")
    import polars

    at, schema = paths(folder), schema_of(folder)
    types = polars.from_arrow(schema.empty_table()).schema
    # JSON has no bytes
    texts = types | {"columns": polars.List(polars.Struct([
        polars.Field(field.name, polars.String if field.dtype == polars.Binary else field.dtype) for field in types["columns"].inner.fields]))}
    frames = {"parquet": polars.read_parquet(at["parquet"]), "arrow": polars.read_ipc_stream(at["arrow"]),
              "jsonl": read_ndjson(at["jsonl"], schema=texts)}
    for name, frame in frames.items():
        need(frame.schema == (texts if name == "jsonl" else types), "%s has other types: %s", name, frame.schema)
    inferred = read_ndjson(at["jsonl"], infer_schema_length=None)
    # without a schema polars does not keep the order of more than 32 columns (pola-rs/polars#23023)
    need(sorted(inferred.columns) == sorted(schema.names), "without a schema jsonl has the columns %s", inferred.columns)
    return "%d rows" % agree({name: frame.to_arrow() for name, frame in frames.items()})


def read_duckdb(folder):
    sql = load("columnar", "duckdb", "sql")
    at, names = paths(folder), schema_of(folder).names
    for name in ("parquet", "jsonl"):
        function = "read_parquet('%s')" if name == "parquet" else "read_json('%s', sample_size=-1, maximum_object_size=268435456)"
        found = sql("select * from " + function % at[name])
        need(found.columns == names, "%s has the columns %s", name, found.columns)
    question = "select row_key, len(token_ids), list_sum(loss_mask), list_sum(entropy), len(turns), turns[1].extras from %s order by 1"
    answers = [sql(question % (f % at[name])).fetchall() for name, f in
               (("parquet", "read_parquet('%s')"), ("jsonl", "read_json('%s', sample_size=-1, maximum_object_size=268435456)"))]
    for a, b in zip(*answers, strict=True):
        # duckdb reads JSON numbers as float64
        need(a[:3] + a[4:] == b[:3] + b[4:] and abs((a[3] or 0) - (b[3] or 0)) < 1e-3, "%s in parquet, %s in jsonl", a, b)
    return "%d rows" % len(answers[0])


def read_extras(folder):
    """Extra members that a client requested are a JSON string, and null if it requested none."""
    with open(paths(folder)["jsonl"], encoding="utf-8") as f:
        turns = [turn for line in f for turn in json.loads(line)["turns"]]
    kept = [json.loads(turn["extras"]) for turn in turns if turn["extras"] is not None]
    need(all(isinstance(extras, dict) and extras for extras in kept), "extras that are no object: %s", kept)
    need(all(isinstance(json.loads(turn["sampling"]), dict) for turn in turns if turn["sampling"]), "sampling is no object")
    # the sessions of this batch request three kinds of extras
    need(kept or os.path.basename(os.path.normpath(folder)) != "mixed", "no turn of the batch mixed has extras")
    return "%d turns, %d with extras of %s" % (len(turns), len(kept), sorted({name for extras in kept for name in extras}))


def read_refused(folder):
    """The metadata of arrow and parquet list the rejected leaves of truth.json."""
    ipc, schema = load("base", "pyarrow", "ipc"), load("base", "pyarrow.parquet", "read_schema")
    at = paths(folder)
    with ipc.open_stream(at["arrow"]) as stream:
        found = {"arrow": stream.schema.metadata, "parquet": schema(at["parquet"]).metadata}
    refused = read.json_file(os.path.join(folder, "truth.json")).get("refused", [])
    for metadata in found.values():
        read.check_refused(json.loads((metadata or {}).get(b"refused", b"null")) or [], refused)
    return "%d leaves refused" % len(refused)


READERS = {"pyarrow": read_pyarrow, "datasets": read_datasets, "polars": read_polars, "duckdb": read_duckdb, "extras": read_extras, "refused": read_refused}


def main():
    folder, bad = sys.argv[1], 0
    for name, reader in READERS.items():
        try:
            word, detail = "ok", reader(folder)
        except Skip as skip:
            word, detail = "skip", skip
        except Wrong as wrong:
            word, detail = "FAIL", wrong
        except Exception as error:  # an error of the library is a result of this check
            word, detail = "FAIL", "%s: %s" % (type(error).__name__, " ".join(str(error).split())[:300])
        bad += word == "FAIL"
        print("%s columnar %s: %s" % (word, name, detail), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    code = main()
    sys.stdout.flush()
    os._exit(code)
