"""Every host's clock against the first host's."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import HOST
from tracelens.schema import column_set, count, number, sheet, text, us
from tracelens.units import NS_PER_US

COLUMNS = column_set(
    HOST,
    text("ranks", "Ranks of the host.", width=30),
    us("offset_us", "Ahead of the first host's clock, in mid-trace; subtracted."),
    number("drift_ppm", "How much faster the clock runs; subtracted.", shape="0.000", unit="µs per second"),
    us(
        "residual_us",
        "Robust standard deviation (1.4826 MAD) of the end times' differences after the correction. Skew below "
        "it is not significant.",
    ),
    count("points", "Collectives shared with the host it was fitted to."),
    text("fitted_to", "Host whose clock it was compared with.", width=18),
)


@sheet("clocks", columns=COLUMNS, order=610)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per host: its clock against the first host's."""
    return pd.DataFrame(
        [
            {
                "host": clock.host,
                "ranks": ranks_text(clock.ranks),
                "offset_us": clock.offset_ns / NS_PER_US,
                "drift_ppm": clock.drift * 1e6,
                "residual_us": clock.residual_us,
                "points": clock.points,
                "fitted_to": clock.via or None,
            }
            for clock in job.clocks.hosts
        ]
    )
