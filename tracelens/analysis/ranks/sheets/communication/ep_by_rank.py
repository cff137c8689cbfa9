"""Token exchanges by op, group and rank."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets import rank_exchanges
from tracelens.analysis.ranks.sheets.communication.ep_summary import COLUMNS, exchange_summary
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.schema import sheet


@sheet("ep_by_rank", columns=COLUMNS, order=550)
def frame(job: JobContext) -> pd.DataFrame:
    """Token exchanges by op, group and rank."""
    return exchange_summary(job.frames[rank_exchanges.TITLE], by_rank=True)
