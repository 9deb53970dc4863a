//! Compression of header fields: RFC 7541.

mod codes;
mod decoder;
mod encoder;
mod huffman;
mod table;

pub use decoder::{BlockError, Decoder, FieldLimits};
pub use encoder::{empty_table, field, indexed, status, with_name_of};

#[cfg(test)]
mod tests;
