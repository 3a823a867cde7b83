"""The record of a turn, which workers read and change by one Lua command per change."""
