"""Tests of guardrails."""
