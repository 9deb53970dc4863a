//! Runs a request through the phases of `modules/mod.rs`, including internal redirects and error pages.
//!
//! The phases themselves ([`walk`]) are not a future, since most handlers answer at once. This module has the waits.

pub mod handshake;
mod walk;

use weir_log::Level;
use weir_values::Template;

use crate::answer::output::SENDING;
use crate::answer::special;
use crate::counts;
use crate::doing;
use crate::request::Request;
pub use crate::request::step::{Answer, From, Handler, Later, Step};
use walk::{Going, Walk};

/// Serves a request whose head was read, up to the last byte of its answer. Returns whether it ended in order.
pub async fn serve(r: &mut Request) -> bool {
    counts::at(r);
    let early = match r.server.conf.early_read.is_empty() {
        true => None,
        false => Box::pin(read_early(r)).await,
    };
    let in_order = finish(r, Walk::from_the_first(r), early.map(Going::Ends)).await;
    if !r.conf().core.post_action.is_empty() {
        Box::pin(r.post_action()).await;
    }
    if r.has_background() {
        Box::pin(r.join_background()).await;
    }
    in_order
}

/// Serves a subrequest, without the access phase: its parent has passed that.
pub async fn serve_subrequest(r: &mut Request) -> bool {
    let walk = Walk::enter(r, From::Server);
    finish(r, walk, None).await
}

/// Continues a request with a step after its answer was sent.
pub async fn go_on(r: &mut Request, step: Step) -> bool {
    finish(r, Walk::over(), Some(Going::Ends(step))).await
}

/// Serves a subrequest that runs its parent's content handler again, for another part of the answer.
pub async fn serve_clone(r: &mut Request) -> bool {
    finish(r, Walk::to_content(r), None).await
}

/// Ends a request whose head was refused, with the page for the status.
pub async fn refuse(r: &mut Request, status: u16) -> bool {
    if r.site.asks_realpath {
        // No phase does this, but the headers of the answer and the access log may have it.
        Box::pin(crate::files::realpath::prepare(r)).await;
    }
    finish(r, Walk::over(), Some(Going::Ends(Step::Status(status)))).await
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

/// Runs the phases up to the end of the answer. Begins with `next` if that is known.
async fn finish(r: &mut Request, mut walk: Walk, mut next: Option<Going>) -> bool {
    loop {
        let going = match next.take() {
            Some(going) => going,
            None => walk.go(r),
        };
        let end = match going {
            Going::Ends(step) => r.stub_for(step),
            Going::Asks { phase, module, what } => {
                let location = r.location;
                doing::note(phase, module, r);
                let step = match what.answer(r) {
                    Answer::Now(step) => step,
                    Answer::Later(future) => doing::noting(phase, module, location, future).await,
                };
                next = walk.took(r, step);
                continue;
            }
            Going::Prepares => {
                Box::pin(crate::files::realpath::prepare(r)).await;
                continue;
            }
            Going::Delays(status) => {
                r.log(Level::Info, format_args!("delaying unauthorized request"));
                let delay = r.conf().core.auth_delay;
                let stays = r.client_stays_for(delay, "").await;
                next = Some(Going::Ends(Step::Status(if stays { status } else { 499 })));
                continue;
            }
        };
        let step = match end {
            Step::Redirect(from) => {
                walk = Walk::enter(r, from);
                continue;
            }
            Step::Status(status) => special::finalize(r, status),
            Step::Respond(body) => {
                doing::note(SENDING, "", r);
                r.respond(body).await
            }
            Step::Sent => return true,
            Step::Next | Step::Done => special::finalize(r, 404),
            Step::Abort => return false,
        };
        next = Some(Going::Ends(step));
    }
}
