"""What came out: captures to packets, packets to tokens, tokens to stalls, tables and plots."""
