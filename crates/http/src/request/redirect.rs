//! Redirects from within: the same request goes on with another path.

use weir_log::Level;

use crate::request::Request;
use crate::request::step::{From, Step};

/// One more change of the path from within; a cycle of them ends with 500, as in nginx.
pub fn count_change(r: &mut Request, doing: std::fmt::Arguments<'_>) -> Option<Step> {
    r.path_changes_left = r.path_changes_left.saturating_sub(1);
    if r.path_changes_left > 0 {
        return None;
    }
    r.log(Level::Error, format_args!("rewrite or internal redirection cycle {doing}"));
    Some(Step::Status(500))
}

/// A server was asked before, and did not answer for good.
fn after_server(r: &Request) -> &'static str {
    if r.contexts.upstream.attempts.is_empty() { "" } else { r.sending() }
}

impl Request {
    /// Goes on as if this path (and query string) had been asked for, from within.
    pub fn redirect_to(&mut self, target: &[u8]) -> Step {
        match memchr::memchr(b'?', target) {
            Some(at) => {
                let step = self.redirect_to_parts(&target[..at], target[at + 1..].to_vec());
                self.args_set = true;
                step
            }
            None => self.redirect_to_parts(target, Vec::new()),
        }
    }

    /// The same with the query string apart.
    pub fn redirect_to_parts(&mut self, path: &[u8], args: Vec<u8>) -> Step {
        self.redirect_to_parts_while(path, args, after_server(self))
    }

    /// The same; `doing` is the end of a line in the log.
    pub fn redirect_to_parts_while(&mut self, path: &[u8], args: Vec<u8>, doing: &str) -> Step {
        let shown = weir_log::Bytes(path);
        let cycle = format_args!("while internally redirecting to \"{shown}\"{doing}");
        if let Some(end) = count_change(self, cycle) {
            return end;
        }
        self.set_path(path);
        (self.args, self.args_set) = (args, false);
        self.begin_anew();
        self.unchanged_path = false;
        self.location = self.site.location(self.server.location);
        Step::Redirect(From::Server)
    }

    /// Goes on in a named location of this server.
    pub fn redirect_to_named(&mut self, name: &[u8]) -> Step {
        self.redirect_to_named_while(name, after_server(self))
    }

    /// The same; `doing` is the end of a line in the log.
    pub fn redirect_to_named_while(&mut self, name: &[u8], doing: &str) -> Step {
        let shown = weir_log::Bytes(name);
        let cycle = format_args!("while redirect to named location \"{shown}\"{doing}");
        if let Some(end) = count_change(self, cycle) {
            return end;
        }
        if self.path.is_empty() {
            let has_frames = self.carrier.has_frames();
            let doing = if has_frames { doing } else { " while reading client request line" };
            let text = format_args!("empty URI in redirect to named location \"{shown}\"{doing}");
            self.log(Level::Error, text);
            return Step::Status(500);
        }
        let server = self.site.location(self.server.location);
        match server.children.named(name) {
            Some(id) => {
                self.begin_anew();
                Step::Redirect(From::Location(id))
            }
            None => {
                let text = format_args!("could not find named location \"{shown}\"{doing}");
                self.log(Level::Error, text);
                Step::Status(500)
            }
        }
    }

    /// What modules remembered of the way so far does not hold on another one.
    fn begin_anew(&mut self) {
        (self.internal, self.path_changed) = (true, false);
        (self.rewritten_in_place, self.path_below_alias) = (false, false);
        self.contexts.redirected();
        if let Some(family) = self.family.as_ref().filter(|_| !self.skips_access()) {
            family.contexts.borrow_mut().redirected();
        }
    }
}
