//! Captured subrequests: the caller gets the whole response as a value.

use super::run;
use crate::request::Request;
use crate::request::family::{Sink, Sub};

/// A subrequest that was prepared and may be changed before it runs.
pub struct Capture(pub(super) Box<Request>);

impl Capture {
    /// The subrequest.
    pub fn request(&mut self) -> &mut Request {
        &mut self.0
    }

    /// If the subrequest ends with a status, it gets no error page and does not count as complete.
    pub fn refuse_pages(&mut self) {
        if let Some(sub) = self.0.sub.as_deref_mut() {
            sub.pageless = true;
        }
    }

    /// Runs the subrequest. The result has the head and [`Request::captured_body`].
    pub async fn run(mut self) -> Box<Request> {
        let in_order = run(&mut self.0).await;
        if let Some(Sub { sink: Sink::Value { whole, .. }, .. }) = self.0.sub.as_deref_mut() {
            *whole = in_order;
        }
        self.0
    }
}

impl Request {
    /// The body of a captured response.
    pub fn captured_body(&self) -> &[u8] {
        match self.sub.as_deref() {
            Some(Sub { sink: Sink::Value { body, .. }, .. }) => body,
            _ => &[],
        }
    }

    /// Takes the body of a captured response.
    pub fn take_captured_body(&mut self) -> Vec<u8> {
        match self.sub.as_deref_mut() {
            Some(Sub { sink: Sink::Value { body, .. }, .. }) => std::mem::take(body),
            _ => Vec::new(),
        }
    }

    /// Whether the captured response is complete.
    pub fn capture_is_whole(&self) -> bool {
        matches!(self.sub.as_deref(), Some(Sub { sink: Sink::Value { whole: true, .. }, .. }))
    }
}
