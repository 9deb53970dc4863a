//! Wire formats: bytes in, events out.
