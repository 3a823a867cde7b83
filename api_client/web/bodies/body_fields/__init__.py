"""The fields that capabilities add to request bodies, one module for each; ``body_model`` collects them."""
