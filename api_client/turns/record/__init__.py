"""The record of a turn. Workers read the record and make each change with one Lua command."""
