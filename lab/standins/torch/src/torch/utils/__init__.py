"""The lab stand-in of torch.utils."""
