"""Arrays: allocation, packing of those that are not contiguous, and copies between CPU and GPU memory."""
