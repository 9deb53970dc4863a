//! `post_action`: continues a finished request in another location, for its side effects.
//! nginx: ngx_http_post_action.

use crate::phases;
use crate::request::Request;
use crate::request::family::Sub;

impl Request {
    /// Continues in the location of `post_action`, which also writes the log line.
    pub async fn post_action(&mut self) {
        let target = &self.conf().core.post_action;
        // The response was sent, so its output must not be used again.
        let output = std::mem::take(&mut self.output);
        let (keepalive, header_only) = (self.keepalive, self.response.header_only);
        (self.response.sent, self.response.header_only) = (false, true);
        // An error's status is that of the client's response, and stays in the log line.
        self.error_page = false;
        let (family, method) = (self.family(), self.method_name().to_vec());
        self.sub = Some(Box::new(Sub::detached(family, method)));
        let step = match target.first() {
            Some(b'/') => self.redirect_to_parts(target, Vec::new()),
            _ => self.redirect_to_named(target),
        };
        phases::go_on(self, step).await;
        self.sub = None;
        self.output = output;
        self.keepalive = keepalive;
        (self.response.sent, self.response.header_only) = (true, header_only);
    }
}
