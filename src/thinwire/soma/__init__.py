"""Floor 3: SOMA, sharded zero-order pretraining. Independent LSTM experts, one text cluster each, forward passes only."""
