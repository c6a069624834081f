"""MIOpen's tuning databases and the convolution problems that they are about; nothing here needs MIOpen or a GPU."""
