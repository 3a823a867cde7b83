"""The record of a turn as the worker reads and changes it: one Lua command for each change."""
