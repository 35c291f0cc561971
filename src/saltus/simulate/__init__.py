"""Decides: steps, events and save times. Writes the record, and is never differentiated."""
