"""One module for each capability, with the capability's entries in the catalogues."""
