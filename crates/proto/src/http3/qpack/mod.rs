//! Compression of fields for HTTP/3: RFC 9204.
//!
//! A [`Decoder`] reads the sections of fields of one connection, and the stream of the peer's
//! encoder, which fills the decoder's table. Sections may come before the entries that they refer
//! to: [`Decoded::Blocked`] tells, and the caller decodes the section again when
//! [`Decoder::next_unblocked`] names its stream. What the decoder has to tell the peer's encoder
//! comes from [`Decoder::write_feedback`].
//!
//! Writing is a row of functions, as with HPACK: [`begin_section`], then [`status`], [`field`] and
//! the others. They use no table of earlier fields, so that the order in which streams write theirs
//! is of no matter. [`EncoderFeedback`] reads what the peer's decoder says to such an encoder.

mod decoder;
mod encoder;
mod feedback;
mod instruction;
mod static_table;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;

pub use self::decoder::{Decoded, Decoder};
pub use self::encoder::{FieldMemo, begin_section, field, indexed, status, with_name_of};
pub use self::feedback::EncoderFeedback;
use super::ErrorCode;
pub use crate::compression::FieldLimits;

/// What an entry of the table counts beside its name and value: RFC 9204 section 3.2.1.
const OVERHEAD: usize = crate::compression::OVERHEAD;

/// Why fields cannot be read. The connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpackError {
    /// The code with which the connection ends; it tells which stream was wrong.
    pub code: ErrorCode,
    /// What is wrong.
    pub fault: QpackFault,
}

impl fmt::Display for QpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

/// What is wrong with fields or instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpackFault {
    /// A section that ends within a field.
    Truncated,
    /// A number of more than 62 bits.
    LongNumber,
    /// An index for which there is no field, or none that the section may refer to.
    BadIndex(u64),
    /// A section that needs more entries than there can be.
    BadInsertCount(u64),
    /// A section whose indices begin before the table does.
    BadBase,
    /// A table that is to become larger than was announced.
    BadCapacity(u64),
    /// An entry that is larger than the table.
    LargeEntry,
    /// An entry with a name or value that is larger than this end accepts.
    LargeField,
    /// A string that is not of the Huffman code.
    BadCode,
    /// More streams wait for entries than was announced.
    ManyBlocked,
    /// An acknowledgement of a section or of entries that were not sent.
    BadAcknowledgement,
}

impl fmt::Display for QpackFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QpackFault::Truncated => f.write_str("field section with incorrect length"),
            QpackFault::LongNumber => f.write_str("too long qpack integer"),
            QpackFault::BadIndex(index) => write!(f, "invalid qpack table index {index}"),
            QpackFault::BadInsertCount(count) => {
                write!(f, "invalid qpack required insert count {count}")
            }
            QpackFault::BadBase => f.write_str("invalid qpack base"),
            QpackFault::BadCapacity(size) => write!(f, "invalid qpack table capacity {size}"),
            QpackFault::LargeEntry => f.write_str("qpack entry larger than the table"),
            QpackFault::LargeField => f.write_str("too large header field"),
            QpackFault::BadCode => f.write_str("invalid encoded header field"),
            QpackFault::ManyBlocked => f.write_str("too many blocked streams"),
            QpackFault::BadAcknowledgement => {
                f.write_str("qpack acknowledgement of what was not sent")
            }
        }
    }
}

impl QpackFault {
    /// In a section of fields.
    fn of_section(self) -> QpackError {
        QpackError { code: ErrorCode::QpackDecompressionFailed, fault: self }
    }

    /// On the stream of the peer's encoder.
    fn of_encoder(self) -> QpackError {
        let code = match self {
            QpackFault::LargeField => ErrorCode::ExcessiveLoad,
            _ => ErrorCode::QpackEncoderStream,
        };
        QpackError { code, fault: self }
    }

    /// On the stream of the peer's decoder.
    fn of_decoder(self) -> QpackError {
        QpackError { code: ErrorCode::QpackDecoderStream, fault: self }
    }
}
