"""`make bench`: helix-turns beside other queues on the same work, in one run."""
