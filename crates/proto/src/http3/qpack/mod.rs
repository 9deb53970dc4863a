//! QPACK, the field compression of HTTP/3: RFC 9204.
//!
//! A [`Decoder`] decodes the field sections of a connection, and reads the peer's encoder stream,
//! which fills the dynamic table. A section may arrive before the entries that it refers to. Then
//! the result is [`Decoded::Blocked`], and the caller decodes the section again when
//! [`Decoder::next_unblocked`] returns its stream. [`Decoder::write_feedback`] writes the decoder
//! stream.
//!
//! Sections are encoded by functions, as with HPACK: [`begin_section`], then [`status`], [`field`]
//! and the others. They do not use the dynamic table, so streams may encode theirs in any order.
//! [`EncoderFeedback`] reads the peer's decoder stream for such an encoder.

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

/// The size of an entry in addition to its name and value: RFC 9204, section 3.2.1.
const OVERHEAD: usize = crate::compression::OVERHEAD;

/// A connection error of QPACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpackError {
    /// The error code, which depends on the kind of stream.
    pub code: ErrorCode,
    /// The fault.
    pub fault: QpackFault,
}

impl fmt::Display for QpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

/// A fault of a field section or an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpackFault {
    /// The section ends within a field.
    Truncated,
    /// An integer of more than 62 bits.
    LongNumber,
    /// An index without an entry, or beyond the Required Insert Count.
    BadIndex(u64),
    /// An invalid Required Insert Count.
    BadInsertCount(u64),
    /// A Base below 0.
    BadBase,
    /// Set Dynamic Table Capacity above SETTINGS_QPACK_MAX_TABLE_CAPACITY.
    BadCapacity(u64),
    /// An entry that is larger than the table.
    LargeEntry,
    /// An entry with a name or value that is larger than this end accepts.
    LargeField,
    /// A string with an invalid Huffman code.
    BadCode,
    /// More blocked streams than SETTINGS_QPACK_BLOCKED_STREAMS.
    ManyBlocked,
    /// A Section Acknowledgment or Insert Count Increment without a reference to the dynamic table.
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
    /// As an error in a field section.
    fn of_section(self) -> QpackError {
        QpackError { code: ErrorCode::QpackDecompressionFailed, fault: self }
    }

    /// As an error on the peer's encoder stream.
    fn of_encoder(self) -> QpackError {
        let code = match self {
            QpackFault::LargeField => ErrorCode::ExcessiveLoad,
            _ => ErrorCode::QpackEncoderStream,
        };
        QpackError { code, fault: self }
    }

    /// As an error on the peer's decoder stream.
    fn of_decoder(self) -> QpackError {
        QpackError { code: ErrorCode::QpackDecoderStream, fault: self }
    }
}
