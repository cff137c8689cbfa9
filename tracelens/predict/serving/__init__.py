"""Requests through a simulated LLM server: one step cost, three levels of detail."""
