"""What rules may ask of the machine, and how programs and models are asked to judge."""
