"""What stands between the network and the API: credentials, bounds, and a record of both.

`gate` judges each request before the API sees it; `rates` holds tenants to their allowances; `connections` bounds what
a connection may cost; `audit` writes down who used what. Nothing here reads a body.
"""
