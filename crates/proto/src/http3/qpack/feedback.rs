//! The peer's decoder stream: RFC 9204, section 4.4.

use super::instruction::PartialInstruction;
use super::{QpackError, QpackFault};

/// Reads the decoder stream for an encoder that does not use the dynamic table. Only Stream
/// Cancellation is valid then: there is nothing to acknowledge.
#[derive(Debug, Default)]
pub struct EncoderFeedback {
    partial: PartialInstruction,
}

impl EncoderFeedback {
    /// Reads bytes of the stream.
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
