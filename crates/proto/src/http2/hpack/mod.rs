//! HPACK, the field compression of HTTP/2: RFC 7541.

mod decoder;
mod encoder;
mod table;

pub use crate::compression::FieldLimits;
pub use decoder::{BlockError, Decoder};
pub use encoder::{empty_table, field, indexed, status, with_name_of};

#[cfg(test)]
mod tests;
