//! Limits the size of a head, counted as in nginx.

use super::error::HeadError;
use super::fields::FieldsReader;
use super::line::LineParser;
use super::request::HeadLimits;
use crate::Span;

/// The buffer that nginx would be using. nginx reads a head into a first buffer and then into a few
/// large ones, and moves an unfinished line along. It refuses a head that does not fit these.
/// weir's buffer is one piece, so this counts the buffers that nginx would use.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The end of the current buffer. 0 for the first.
    end: usize,
    used: usize,
}

impl Window {
    #[inline]
    pub(super) fn end(&self, limits: &HeadLimits) -> usize {
        if self.end == 0 { limits.first.max(1) } else { self.end }
    }

    #[cold]
    pub(super) fn next_for_line(
        &mut self,
        line: &LineParser,
        limits: &HeadLimits,
    ) -> Result<(), HeadError> {
        if line.blank() {
            // nginx starts the same buffer anew
            self.end = line.pos + limits.first.max(1);
            return Ok(());
        }
        self.advance(line.start, line.pos, limits).ok_or(HeadError::TooLongUri)
    }

    #[cold]
    pub(super) fn next_for_fields(
        &mut self,
        fields: &FieldsReader,
        limits: &HeadLimits,
    ) -> Result<(), HeadError> {
        let pos = fields.pos();
        match fields.line_start() {
            Some(start) => self.advance(start, pos, limits),
            None => self.advance(pos, pos, limits),
        }
        .ok_or_else(|| {
            let line = Span::new(fields.last_start(), pos);
            if line.is_empty() {
                HeadError::TooLargeRequest
            } else {
                HeadError::TooLongHeader { line }
            }
        })
    }

    /// Continues the line that began at `start` in the next buffer, from `pos` on.
    fn advance(&mut self, start: usize, pos: usize, limits: &HeadLimits) -> Option<()> {
        let line = limits.line.max(1);
        if pos - start >= line || self.used >= limits.total / line {
            return None;
        }
        self.used += 1;
        self.end = start + line;
        Some(())
    }
}
