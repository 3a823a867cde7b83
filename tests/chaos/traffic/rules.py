"""The policy file of a chaos run: the rules of a run without a file, and one more in shadow that rejects everything.

What the shadow finds must show nowhere but in the record of the attempt: every other invariant judges the same load.
"""

#: The name of the rule in shadow.
SHADOW = "never_long_enough"
POLICY = f"""\
locale: de
rules:
  - step_marker
  - adr_structure
  - file_existence
  - {{rule: length, name: {SHADOW}, shadow: true, reactions: [escalate, fail], options: {{min_words: 99999}}}}
"""
