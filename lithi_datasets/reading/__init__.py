"""Reading a dataset in training: exact tensors, who reads what, and the loader."""
