"""`kvgrove demo`: the main promises on a real model, shown as a table and checked."""
