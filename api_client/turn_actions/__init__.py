"""The actions on turns that operators can order, one module for each; ``registry`` lists them."""
