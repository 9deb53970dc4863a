//! `post_action`: after its answer a request goes on inside, for the sake of what that does.
//! nginx: ngx_http_post_action.

use crate::phases;
use crate::request::Request;
use crate::request::family::Sub;

impl Request {
    /// Goes on in the location that `post_action` names. The log line is that location's.
    pub async fn post_action(&mut self) {
        let target = &self.conf().core.post_action;
        // The answer was sent: neither its head nor its body may be touched again.
        let output = std::mem::take(&mut self.output);
        let (keepalive, header_only) = (self.keepalive, self.response.header_only);
        (self.response.sent, self.response.header_only) = (false, true);
        // The status of an error is the client's, and stays in the log line.
        self.error_page = false;
        let (family, method) = (self.family(), self.method_name().to_vec());
        self.sub = Some(Box::new(Sub::unheard(family, method)));
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
