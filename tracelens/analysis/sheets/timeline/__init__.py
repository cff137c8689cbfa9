"""Sheets of the device's time: what it did when, why it stood idle, step by step."""
