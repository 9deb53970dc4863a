//! The stream of the peer's decoder: RFC 9204 section 4.4.

use super::instruction::PartialInstruction;
use super::{QpackError, QpackFault};

/// Reads what the peer's decoder says to an encoder that adds nothing to the peer's table. So there
/// is nothing to acknowledge; streams may be cancelled.
#[derive(Debug, Default)]
pub struct EncoderFeedback {
    partial: PartialInstruction,
}

impl EncoderFeedback {
    /// Takes bytes of the stream.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), QpackError> {
        let read = self.partial.read(bytes, |input| {
            let cancelled = input.0.first().is_some_and(|byte| byte & 0xc0 == 0x40);
            if !cancelled {
                return Err(QpackFault::BadAcknowledgement);
            }
            input.number(6).map(|_stream| ())
        });
        read.map_err(QpackFault::of_decoder)
    }
}
