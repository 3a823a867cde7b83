"""Markdown, as far as rules need it: blocks, nesting, headings. Its own scanner: ``python -m tests.bench.markdown``.

``scan`` reads line by line. It is always in one of four states of the leaf, inside a stack of open containers:

    stack: list items (a width) and quotes, outermost first; a line first says how many of them go on (``_match``)

                 text                      #, ---, === : a heading or rule, done in one line
      BETWEEN ----------> PARAGRAPH ------------------------------.
       |  ^ ^               |  ^ text: goes on                    |
       |  | '---------------'--'  blank line (_end_paragraph)     |
       |  '-------------------------------------------------------'
       |---- ``` or ~~~ ----> FENCE  -- the same mark, as long or longer, alone --> BETWEEN  (_in_fence)
       '---- <tag, <!-- ----> HTML   -- what ends this kind of block -------------> BETWEEN  (``html``)

Fences and HTML may also begin in a paragraph. A container that ends takes its leaf with it (``_unwind``). Fields of
``_Scanner`` say the state: ``paragraph`` >= 0, ``fence`` not None, ``html`` not None; none of them: BETWEEN.
"""
