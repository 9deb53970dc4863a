//! A range in a buffer, as two offsets, so that it survives the buffer's growth.

/// A half-open range of offsets into the buffer that was parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset behind the last byte.
    pub end: u32,
}

impl Span {
    /// The span of two offsets. Heads are bounded by their limits, far below 4 GiB.
    #[inline]
    pub fn new(start: usize, end: usize) -> Span {
        Span { start: start as u32, end: end as u32 }
    }

    /// The bytes of this span in `buf`; empty when the span does not fit, which only a buffer
    /// other than the parsed one can cause.
    #[inline]
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether the span has no bytes.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}
