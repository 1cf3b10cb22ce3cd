"""Rounds: start, client rows, aggregation, evaluation."""
