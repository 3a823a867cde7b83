"""One module for each capability: what it adds to the catalogues of the contract."""
