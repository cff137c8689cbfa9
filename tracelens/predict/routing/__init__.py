"""Where the tokens of an MoE layer go, and what their all-to-all costs."""
