"""Stub."""
def judge(report): pass
def tables(report): return []
