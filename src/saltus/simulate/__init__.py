"""Decides about steps, events and save times, and writes the record; never differentiated."""
