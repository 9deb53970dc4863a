//! Carries a request through the phases of `modules/mod.rs`, through internal redirects and error pages.

use weir_log::Level;

use crate::answer::output::SENDING;
use crate::answer::special;
use crate::counts;
use crate::doing;
use crate::request::Request;
use crate::request::redirect::count_change;
use crate::request::step::Named;
pub use crate::request::step::{Answer, From, Handler, Later, Step};
use crate::site::content::Content;
use crate::site::location::{self, Found};
use weir_proto::uri::Escape;
use weir_values::Template;

impl Named<Handler> {
    /// Calls the handler; `phase` is what it is blamed as when it holds the loop up.
    async fn call(self, r: &mut Request, phase: &'static str) -> Step {
        let (module, location) = (self.module, r.location);
        doing::note(phase, module, r);
        match self.run {
            Handler::Now(f) => f(r),
            Handler::Either(f) => match f(r) {
                Answer::Now(step) => step,
                Answer::Later(future) => doing::noting(phase, module, location, future).await,
            },
        }
    }
}

/// Serves a request after its head was read, up to the last byte of its answer. True if it ended in
/// order.
pub async fn serve(r: &mut Request) -> bool {
    counts::at(r);
    let early = match r.server.conf.early_read.is_empty() {
        true => None,
        false => read_early(r).await,
    };
    let step = match early {
        Some(end) => end,
        None => match each(r, "the post_read phase", &r.location.plan.post_read).await {
            Some(end) => end,
            None => run(r, From::Server).await,
        },
    };
    let in_order = settle(r, step).await;
    if !r.conf().core.post_action.is_empty() {
        Box::pin(r.post_action()).await;
    }
    if r.has_background() {
        Box::pin(r.join_background()).await;
    }
    in_order
}

/// Serves a request that was made for another one: access rules were that one's matter.
pub async fn serve_subrequest(r: &mut Request) -> bool {
    let step = run(r, From::Server).await;
    settle(r, step).await
}

/// Follows a step of a request after its answer was sent.
pub async fn go_on(r: &mut Request, step: Step) -> bool {
    settle(r, step).await
}

/// Serves a request that asks the same handler once more, for another part of its answer.
pub async fn serve_clone(r: &mut Request) -> bool {
    let step = content(r).await;
    settle(r, step).await
}

/// `client_body_early_read`
async fn read_early(r: &mut Request) -> Option<Step> {
    if !Template::any_is_true(&r.server.conf.early_read, r) {
        return None;
    }
    if let Some(end) = crate::core::enter::check_body_size(r) {
        return Some(end);
    }
    r.read_body().await.err().map(Into::into)
}

/// Ends a request with a refused head: straight to the page for the status.
pub async fn refuse(r: &mut Request, status: u16) -> bool {
    settle(r, Step::Status(status)).await
}

/// Follows a step to the end of the answer.
async fn settle(r: &mut Request, mut step: Step) -> bool {
    loop {
        step = match r.stub_for(step) {
            Step::Redirect(from) => run(r, from).await,
            Step::Status(status) => special::finalize(r, status),
            Step::Respond(body) => {
                doing::note(SENDING, "", r);
                r.respond(body).await
            }
            Step::Sent => return true,
            Step::Next | Step::Done => special::finalize(r, 404),
            Step::Abort => return false,
        };
    }
}

async fn run(r: &mut Request, from: From) -> Step {
    let mut enter = from;
    if enter == From::Server
        && let Some(end) =
            each(r, "the server_rewrite phase", &r.location.plan.server_rewrite).await
    {
        return end;
    }
    loop {
        match std::mem::replace(&mut enter, From::Server) {
            From::Server => {
                if let Some(end) = find_location(r) {
                    return end;
                }
            }
            From::Location(id) => crate::core::enter::enter_named(r, id),
        }
        r.path_changed = false;
        if let Some(end) = each(r, "the rewrite phase", &r.location.plan.rewrite).await {
            return end;
        }
        // Asked here, since the code above may have entered an `if`.
        if let Some(end) = each(r, "the rewrite phase", &r.location.plan.rewritten).await {
            return end;
        }
        if !r.path_changed {
            break;
        }
        let shown = String::from_utf8_lossy(&r.path).into_owned();
        if let Some(end) = count_change(r, format_args!("while processing \"{shown}\"")) {
            return end;
        }
        r.location = r.site.location(r.server.location);
    }
    if let Some(end) = each(r, "the preaccess phase", &r.location.plan.preaccess).await {
        return end;
    }
    if let Some(end) = access(r).await {
        return end;
    }
    if let Some(end) = each(r, "the precontent phase", &r.location.plan.precontent).await {
        return end;
    }
    content(r).await
}

/// Runs the handlers of a phase; `None`: go on with the next phase.
async fn each(
    r: &mut Request,
    phase: &'static str,
    handlers: &'static [Named<Handler>],
) -> Option<Step> {
    if handlers.is_empty() {
        return None;
    }
    if r.site.asks_realpath {
        Box::pin(crate::files::realpath::prepare(r)).await;
    }
    for handler in handlers {
        // Most answer at once, and need no future around them.
        let step = match handler.run {
            Handler::Now(f) => {
                doing::note(phase, handler.module, r);
                f(r)
            }
            _ => handler.call(r, phase).await,
        };
        match step {
            Step::Next => {}
            Step::Done => return None,
            end => return Some(end),
        }
    }
    None
}

fn find_location(r: &mut Request) -> Option<Step> {
    let (id, redirect) = match location::find(r, r.server.location) {
        Found::At(id) => (id, false),
        Found::Redirect(id) => (id, true),
        Found::Undecided => return Some(Step::Status(500)),
    };
    r.location = r.site.location(id);
    if let Some(end) = crate::core::enter::enter_location(r) {
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

/// The access phase: `satisfy all` needs every handler's consent, `satisfy any` one handler's.
async fn access(r: &mut Request) -> Option<Step> {
    if r.is_vouched_for() {
        return None;
    }
    if r.location.plan.access.is_empty() {
        return None;
    }
    let any = r.conf().core.satisfy_any;
    let mut denied = None;
    for handler in &r.location.plan.access {
        match handler.call(r, "the access phase").await {
            Step::Next => {}
            Step::Done if any => {
                // What other handlers would have asked the client for is of no matter now.
                r.response.headers.remove(b"WWW-Authenticate");
                r.response.headers.remove(b"Proxy-Authenticate");
                return None;
            }
            Step::Done => {}
            Step::Status(status @ (401 | 403 | 407)) if any => {
                // 401 tells the client what it may try, so it wins over 403.
                if !matches!(denied, Some(401 | 407)) {
                    denied = Some(status);
                }
            }
            Step::Status(status @ (401 | 407)) => return Some(unauthorized(r, status).await),
            end => return Some(end),
        }
    }
    match denied? {
        status @ (401 | 407) => Some(unauthorized(r, status).await),
        status => {
            r.log(Level::Error, format_args!("access forbidden by rule"));
            Some(Step::Status(status))
        }
    }
}

/// `auth_delay`: a client that guesses passwords has to wait.
async fn unauthorized(r: &mut Request, status: u16) -> Step {
    let delay = r.conf().core.auth_delay;
    if !delay.is_zero() {
        r.log(Level::Info, format_args!("delaying unauthorized request"));
        let handle = r.event_loop.handle.clone();
        handle.sleep(delay).await;
    }
    Step::Status(status)
}

/// What content handlers are blamed as.
const CONTENT: &str = "the content phase";

/// Runs the handler that the location names.
async fn answer_by(r: &mut Request, content: &'static Content) -> Step {
    let (module, location) = (content.module(), r.location);
    doing::note(CONTENT, module, r);
    match content.answer(r) {
        Answer::Now(step) => step,
        Answer::Later(future) => doing::noting(CONTENT, module, location, future).await,
    }
}

async fn content(r: &mut Request) -> Step {
    if r.site.asks_realpath {
        Box::pin(crate::files::realpath::prepare(r)).await;
    }
    let Ok(content) = Content::after_ifs(r.chosen_content, r.conf().core.content.as_ref()) else {
        r.log(
            Level::Error,
            format_args!("no upstream configuration: a later \"if\" names no handler"),
        );
        return Step::Status(500);
    };
    if let Some(content) = content {
        match answer_by(r, content).await {
            // Not for this path: a directory of videos has an index like others.
            Step::Next => {}
            end => return end,
        }
    }
    for handler in &r.location.plan.content {
        match handler.call(r, CONTENT).await {
            Step::Next => {}
            end => return end,
        }
    }
    if r.path.ends_with(b"/") {
        let path = r.conf().core.map_path(r);
        r.log(Level::Error, format_args!("directory index of \"{}\" is forbidden", path.display()));
        return Step::Status(403);
    }
    r.log(Level::Error, format_args!("no handler found"));
    Step::Status(404)
}
