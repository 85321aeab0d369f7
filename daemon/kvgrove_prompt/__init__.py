"""From messages to tokens: roles, chat templates, tokenizer bundles, assembly.

One module set for gateway, daemon and warm-up (ROU-11): whoever needs the tokens of a prompt gets them here, so that
there is one answer. Knows no sockets, no cache and no model weights, and never imports torch.
"""
