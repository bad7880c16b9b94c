"""Parquet by pyarrow: a file for each table, typed, with the unit in each column's metadata."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from queue_runner.export.formats import need
from queue_runner.export.selected import TABLES, Selected

NAME = "parquet"
HELP = "a folder of Parquet files for pandas, DuckDB, Polars: runs, iterations, evals, metrics (pyarrow)"
ROWS_AT_ONCE = 65_536
"""Rows of a row group: as many are in memory at once."""


def write(selected: Selected, folder: Path) -> None:
    """Write the four files. Raises: UsageError without pyarrow."""
    pa = need("pyarrow")
    parquet = need("pyarrow.parquet")
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_()}
    for table in TABLES:
        fields = [pa.field(f.name, types[f.kind], metadata={"unit": f.unit} if f.unit else None) for f in table.fields]
        schema = pa.schema(fields)
        rows = selected.rows(table)
        with parquet.ParquetWriter(folder / f"{table.name}.parquet", schema, compression="zstd") as writer:
            while some := list(islice(rows, ROWS_AT_ONCE)):
                columns = [
                    pa.array(values, field.type) for values, field in zip(zip(*some, strict=True), schema, strict=True)
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
