//! The body of a script's answer.

use weir_proto::http1::Method;

use crate::request::Request;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::{Answer, Extra, TOO_MUCH};

/// The rest of a body's announced length.
#[derive(Debug, Default)]
pub struct Announced {
    rest: Option<u64>,
    /// The request is HEAD: there may be no body.
    of_head: bool,
    came: bool,
}

impl Announced {
    /// For this answer.
    pub fn by(r: &Request, answer: &Answer) -> Announced {
        let rest = if matches!(answer.status, 204 | 304) { Some(0) } else { answer.length };
        Announced { rest, of_head: r.method == Method::Head, came: false }
    }

    /// Counts received bytes. Bytes beyond the announced length are cut off and reported.
    pub fn take(&mut self, buf: &mut Vec<u8>) -> Option<Extra> {
        self.came |= !buf.is_empty();
        let rest = self.rest.as_mut()?;
        let wanted = usize::try_from(*rest).unwrap_or(usize::MAX);
        let extra = (buf.len() > wanted).then_some(TOO_MUCH);
        buf.truncate(wanted);
        *rest -= buf.len() as u64;
        extra
    }

    /// Whether more must arrive.
    pub fn is_due(&self) -> bool {
        self.is_short() && (self.came || !self.of_head)
    }

    /// Whether less than the announced length has arrived. This is usual after HEAD. If only the
    /// connection's end ends the body, such an answer must not be stored.
    pub fn is_short(&self) -> bool {
        self.rest.is_some_and(|rest| rest > 0)
    }

    /// Whether the announced length has arrived.
    pub fn is_whole(&self) -> bool {
        self.rest == Some(0)
    }

    /// Whether the body is not needed, so that its end is not waited for.
    pub fn is_left(&self, r: &Request, passing: &UpstreamConf) -> bool {
        self.of_head && !r.is_cacheable() && passing.store.is_none()
    }
}
