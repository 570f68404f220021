"""The whole zero-order evaluation of one expert: its losses at theta +- eps z_j on one batch."""
