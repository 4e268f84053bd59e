"""The command lines: words in, one plan or one error out."""
