"""A lake: the tables of many traces as Parquet files, partitioned by run and rank, asked in SQL."""

from __future__ import annotations
