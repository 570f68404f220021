"""Floor 3: SOMA, sharded zero-order pretraining: independent LSTM experts, a text cluster each, forwards only."""
