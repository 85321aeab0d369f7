"""The transformers engine: packed forwards over pool memory, iteration-level batching, sampling. No sockets."""
