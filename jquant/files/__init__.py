"""Files of tensors: safetensors, read and written, and errors that name file and tensor."""
