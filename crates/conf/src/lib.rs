//! The nginx.conf language: lexer, parser, contexts, directive tables, errors with file and line.
