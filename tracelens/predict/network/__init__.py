"""What connects ranks: topologies, clusters, traffic between ranks, collective algorithms, packets."""

from __future__ import annotations
