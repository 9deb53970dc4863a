//! Runs a request through the phases of its location, handler by handler. This code never waits. If a handler must wait, the
//! walk returns to its caller, and continues with the handler's result.

use std::slice::Iter;

use weir_log::Level;
use weir_proto::uri::Escape;

use crate::core::enter;
use crate::doing;
use crate::request::Request;
use crate::request::redirect::count_change;
use crate::request::step::{Answer, From, Handler, Named, Step};
use crate::site::content::Content;
use crate::site::location::{self, Found};

/// The phases in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    PostRead,
    ServerRewrite,
    /// The rewrite phase of a location.
    Rewrite,
    /// The end of the rewrite phase, which may be that of an `if` that the request has entered.
    Rewritten,
    Preaccess,
    Access,
    Precontent,
    /// The handler that the location names for its content.
    Chosen,
    /// The default content handlers, if the location names none or the named one has declined.
    Content,
}

impl Phase {
    /// Its name in the log, if one of its handlers blocks the loop.
    fn name(self) -> &'static str {
        match self {
            Phase::PostRead => "the post_read phase",
            Phase::ServerRewrite => "the server_rewrite phase",
            Phase::Rewrite | Phase::Rewritten => "the rewrite phase",
            Phase::Preaccess => "the preaccess phase",
            Phase::Access => "the access phase",
            Phase::Precontent => "the precontent phase",
            Phase::Chosen | Phase::Content => "the content phase",
        }
    }
}

/// The position of a request in the phases.
pub struct Walk {
    phase: Phase,
    /// The handlers of the phase that did not run yet.
    handlers: Iter<'static, Named<Handler>>,
    /// `$realpath_root` must be resolved before this phase's handlers run.
    prepares: bool,
}

/// Why the walk returns to its caller.
pub enum Going {
    /// The request ends, or enters another location.
    Ends(Step),
    /// This handler may wait. Its result goes to [`Walk::took`].
    Asks { phase: &'static str, module: &'static str, what: Asked },
    /// `$realpath_root` must be resolved first.
    Prepares,
    /// This status is delayed by `auth_delay`, for clients that guess passwords.
    Delays(u16),
}

/// A handler that may wait.
pub enum Asked {
    Handler(for<'a> fn(&'a mut Request) -> Answer<'a>),
    Content(&'static Content),
}

impl Asked {
    pub fn answer(self, r: &mut Request) -> Answer<'_> {
        match self {
            Asked::Handler(f) => f(r),
            Asked::Content(content) => content.answer(r),
        }
    }
}

impl Walk {
    /// A walk through all phases.
    pub fn from_the_first(r: &Request) -> Walk {
        Walk::new(r, Phase::PostRead, &r.location.plan.post_read)
    }

    /// A walk from the phase at which a redirect enters.
    pub fn enter(r: &mut Request, from: From) -> Walk {
        match from {
            From::Server => {
                // As in nginx, the server's settings for the connection stay in force in the next location.
                enter::settings_changed(r);
                Walk::new(r, Phase::ServerRewrite, &r.location.plan.server_rewrite)
            }
            From::Location(id) => {
                enter::enter_named(r, id);
                let mut walk = Walk::over();
                walk.rewrite(r);
                walk
            }
        }
    }

    /// A walk that begins with the content phase.
    pub fn to_content(r: &Request) -> Walk {
        Walk::new(r, Phase::Chosen, &[])
    }

    /// A walk without any handler.
    pub fn over() -> Walk {
        Walk { phase: Phase::Content, handlers: [].iter(), prepares: false }
    }

    fn new(r: &Request, phase: Phase, handlers: &'static [Named<Handler>]) -> Walk {
        let mut walk = Walk::over();
        walk.begin(r, phase, handlers);
        walk
    }

    fn begin(&mut self, r: &Request, phase: Phase, handlers: &'static [Named<Handler>]) {
        (self.phase, self.handlers) = (phase, handlers.iter());
        self.prepares = r.site.asks_realpath && (!handlers.is_empty() || phase == Phase::Chosen);
    }

    /// Runs one handler after another, up to the first that may wait, or to the end.
    pub fn go(&mut self, r: &mut Request) -> Going {
        loop {
            if std::mem::take(&mut self.prepares) {
                return Going::Prepares;
            }
            while let Some(handler) = self.handlers.next() {
                let (phase, module) = (self.phase.name(), handler.module);
                let ask = match handler.run {
                    Handler::Now(ask) => ask,
                    Handler::Either(ask) => {
                        return Going::Asks { phase, module, what: Asked::Handler(ask) };
                    }
                };
                doing::note(phase, module, r);
                let step = ask(r);
                if let Some(stop) = self.took(r, step) {
                    return stop;
                }
            }
            if let Some(stop) = self.next_phase(r) {
                return stop;
            }
        }
    }

    /// Takes the result of a handler. Returns none if the walk goes on.
    pub fn took(&mut self, r: &mut Request, step: Step) -> Option<Going> {
        let is_content = matches!(self.phase, Phase::Chosen | Phase::Content);
        match step {
            Step::Next => None,
            end if is_content => Some(Going::Ends(end)),
            step if self.phase == Phase::Access => self.took_consent(r, step),
            Step::Done => {
                self.handlers = [].iter();
                None
            }
            end => Some(Going::Ends(end)),
        }
    }

    /// Takes the result of an access handler. `satisfy all` needs the consent of all handlers, `satisfy any` that of one.
    fn took_consent(&mut self, r: &mut Request, step: Step) -> Option<Going> {
        let any = r.conf().core.satisfy_any;
        match step {
            Step::Done if any => {
                // Another handler's challenge does not matter any more.
                r.response.headers.remove(b"WWW-Authenticate");
                r.response.headers.remove(b"Proxy-Authenticate");
                (self.handlers, r.denied) = ([].iter(), None);
                None
            }
            Step::Done => None,
            Step::Status(status @ (401 | 403 | 407)) if any => {
                // 401 and 407 tell the client what to try, so they win over 403.
                if !matches!(r.denied, Some(401 | 407)) {
                    r.denied = Some(status);
                }
                None
            }
            Step::Status(status @ (401 | 407)) => Some(unauthorized(r, status)),
            end => Some(Going::Ends(end)),
        }
    }

    /// The phase is over, and the next one begins.
    fn next_phase(&mut self, r: &mut Request) -> Option<Going> {
        let plan = &r.location.plan;
        match self.phase {
            Phase::PostRead => self.begin(r, Phase::ServerRewrite, &plan.server_rewrite),
            Phase::ServerRewrite => return self.find(r),
            // The handlers may have entered an `if`, which has its own plan.
            Phase::Rewrite => self.begin(r, Phase::Rewritten, &plan.rewritten),
            Phase::Rewritten if r.path_changed => {
                let shown = weir_log::Bytes(&r.path).to_string();
                if let Some(end) = count_change(r, format_args!("while processing \"{shown}\"")) {
                    return Some(Going::Ends(end));
                }
                r.location = r.site.location(r.server.location);
                return self.find(r);
            }
            Phase::Rewritten => self.begin(r, Phase::Preaccess, &plan.preaccess),
            Phase::Preaccess if r.skips_access() => {
                self.begin(r, Phase::Precontent, &plan.precontent);
            }
            Phase::Preaccess => self.begin(r, Phase::Access, &plan.access),
            Phase::Access => {
                match r.denied.take() {
                    None => {}
                    Some(status @ (401 | 407)) => return Some(unauthorized(r, status)),
                    Some(status) => {
                        r.log(Level::Error, format_args!("access forbidden by rule"));
                        return Some(Going::Ends(Step::Status(status)));
                    }
                }
                self.begin(r, Phase::Precontent, &plan.precontent);
            }
            Phase::Precontent => self.begin(r, Phase::Chosen, &[]),
            Phase::Chosen => {
                self.begin(r, Phase::Content, &plan.content);
                return chosen(r);
            }
            Phase::Content => return Some(Going::Ends(no_content(r))),
        }
        None
    }

    /// Finds the location for the path and enters it.
    fn find(&mut self, r: &mut Request) -> Option<Going> {
        let end = find_location(r).map(Going::Ends);
        if end.is_none() {
            self.rewrite(r);
        }
        end
    }

    /// Begins the rewrite phase of a location.
    fn rewrite(&mut self, r: &mut Request) {
        r.path_changed = false;
        self.begin(r, Phase::Rewrite, &r.location.plan.rewrite);
    }
}

fn find_location(r: &mut Request) -> Option<Step> {
    let (id, redirect) = match location::find(r, r.server.location) {
        Found::At(id) => (id, false),
        Found::Redirect(id) => (id, true),
        Found::Undecided => return Some(Step::Status(500)),
    };
    r.location = r.site.location(id);
    if let Some(end) = enter::enter_location(r) {
        return Some(end);
    }
    if !redirect {
        return None;
    }
    let mut target = Vec::new();
    weir_proto::uri::escape(Escape::Uri, &r.location.name, &mut target);
    if !r.args.is_empty() {
        target.push(b'?');
        target.extend_from_slice(&r.args);
    }
    r.response.location = Some(target);
    Some(Step::Status(301))
}

fn unauthorized(r: &Request, status: u16) -> Going {
    match r.conf().core.auth_delay.is_zero() {
        true => Going::Ends(Step::Status(status)),
        false => Going::Delays(status),
    }
}

/// Runs the content handler that the location names, if it names one.
fn chosen(r: &mut Request) -> Option<Going> {
    let Ok(content) = Content::after_ifs(r.chosen_content, r.conf().core.content.as_ref()) else {
        r.log(
            Level::Error,
            format_args!("no upstream configuration: a later \"if\" names no handler"),
        );
        return Some(Going::Ends(Step::Status(500)));
    };
    let content = content?;
    let (phase, module) = (Phase::Chosen.name(), content.module());
    Some(Going::Asks { phase, module, what: Asked::Content(content) })
}

/// The result if no content handler has answered.
fn no_content(r: &mut Request) -> Step {
    if r.path.ends_with(b"/") {
        let path = r.conf().core.map_path(r);
        r.log(
            Level::Error,
            format_args!("directory index of \"{}\" is forbidden", weir_log::Bytes::of_path(&path)),
        );
        return Step::Status(403);
    }
    r.log(Level::Error, format_args!("no handler found"));
    Step::Status(404)
}
