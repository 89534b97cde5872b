"""The rules, and nothing but the rules: pure functions over frozen records.

No clock, no chance, no input or output lives here; time and ids arrive as arguments.
"""
