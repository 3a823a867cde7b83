"""The parts that capabilities add to pages, one module for each; ``page_part`` collects them."""
