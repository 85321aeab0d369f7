"""One module for each command of `kvgrove`: options in, a call, words out."""
