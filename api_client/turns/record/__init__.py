"""The record of a turn, which workers change with one Lua command at a time."""
