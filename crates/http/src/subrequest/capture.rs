//! Subrequests with an answer that is wanted as a value: by a script, or to be changed as a whole.

use super::run;
use crate::request::Request;
use crate::request::family::{Sink, Sub};

/// A subrequest that is prepared, and may be changed before it runs.
pub struct Capture(pub(super) Box<Request>);

impl Capture {
    /// The subrequest.
    pub fn request(&mut self) -> &mut Request {
        &mut self.0
    }

    /// An end with a status stays without a page, and does not count as whole.
    pub fn refuse_pages(&mut self) {
        if let Some(sub) = self.0.sub.as_deref_mut() {
            sub.pageless = true;
        }
    }

    /// Runs it; the answer is in its head and [`Request::captured_body`].
    pub async fn run(mut self) -> Box<Request> {
        let in_order = run(&mut self.0).await;
        if let Some(Sub { sink: Sink::Value { whole, .. }, .. }) = self.0.sub.as_deref_mut() {
            *whole = in_order;
        }
        self.0
    }
}

impl Request {
    /// The body of a captured answer.
    pub fn captured_body(&self) -> &[u8] {
        match self.sub.as_deref() {
            Some(Sub { sink: Sink::Value { body, .. }, .. }) => body,
            _ => &[],
        }
    }

    /// The same to keep.
    pub fn take_captured_body(&mut self) -> Vec<u8> {
        match self.sub.as_deref_mut() {
            Some(Sub { sink: Sink::Value { body, .. }, .. }) => std::mem::take(body),
            _ => Vec::new(),
        }
    }

    /// Whether all of a captured answer came.
    pub fn capture_is_whole(&self) -> bool {
        matches!(self.sub.as_deref(), Some(Sub { sink: Sink::Value { whole: true, .. }, .. }))
    }
}
