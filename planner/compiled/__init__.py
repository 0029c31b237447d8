"""`compile: true`, as torch.compile does it: Inductor's own host program, run on fake tensors."""
