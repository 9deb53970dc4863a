//! The body of a script's answer.

use weir_proto::http1::Method;

use crate::request::Request;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::{Answer, Extra, TOO_MUCH};

/// What was announced of a body and has not come.
#[derive(Debug, Default)]
pub struct Announced {
    rest: Option<u64>,
    /// HEAD was asked for: nothing need come, unless something does.
    of_head: bool,
    came: bool,
}

impl Announced {
    /// Of this answer.
    pub fn by(r: &Request, answer: &Answer) -> Announced {
        let rest = if matches!(answer.status, 204 | 304) { Some(0) } else { answer.length };
        Announced { rest, of_head: r.method == Method::Head, came: false }
    }

    /// Takes what came. What is too much is cut off: the text says so.
    pub fn take(&mut self, buf: &mut Vec<u8>) -> Option<Extra> {
        self.came |= !buf.is_empty();
        let rest = self.rest.as_mut()?;
        let wanted = usize::try_from(*rest).unwrap_or(usize::MAX);
        let extra = (buf.len() > wanted).then_some(TOO_MUCH);
        buf.truncate(wanted);
        *rest -= buf.len() as u64;
        extra
    }

    /// More of it is due.
    pub fn is_due(&self) -> bool {
        self.is_short() && (self.came || !self.of_head)
    }

    /// Not all that was announced has come, as is usual after HEAD. Where only the connection's end tells the body's, that is
    /// no answer to keep.
    pub fn is_short(&self) -> bool {
        self.rest.is_some_and(|rest| rest > 0)
    }

    /// All that was announced has come.
    pub fn is_whole(&self) -> bool {
        self.rest == Some(0)
    }

    /// The body is not wanted, and its end is not waited for.
    pub fn is_left(&self, r: &Request, passing: &UpstreamConf) -> bool {
        self.of_head && !r.is_cacheable() && passing.store.is_none()
    }
}
