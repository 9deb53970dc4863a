//! The phases whose scripts may answer: rewrite (of the server and of the location), access,
//! precontent, content.

use weir_engine::Boxed;
use weir_log::Level;

use super::answer;
use super::conf::CONF;
use super::current::{Phase, Subject};
use super::run::{self, ScriptOutcome, Start};
use super::script::Script;
use super::vm::{Unloaded, vm_of};
use super::yield_request::Exit;
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;

/// `ngx.ERROR`
pub(super) const ERROR: i32 = -1;

/// `ngx.DECLINED`: the next handler of the phase gets the request.
pub(super) const DECLINED: i32 = -5;

/// `server_rewrite_by_lua`
pub fn server_rewrite(r: &mut Request) -> Answer<'_> {
    match &CONF.of(r.conf()).server_rewrite {
        Some(script) => Answer::Later(Boxed::new(move || {
            before_content(r, Phase::ServerRewrite, script, Step::Next)
        })),
        None => Answer::Now(Step::Next),
    }
}

/// `rewrite_by_lua`
pub fn rewrite(r: &mut Request) -> Answer<'_> {
    match &CONF.of(r.conf()).rewrite {
        // A changed path leads to another location, whose script runs in place of this one.
        Some(script) if !r.path_changed => {
            Answer::Later(Boxed::new(move || before_content(r, Phase::Rewrite, script, Step::Next)))
        }
        _ => Answer::Now(Step::Next),
    }
}

/// `access_by_lua`
pub fn access(r: &mut Request) -> Answer<'_> {
    match &CONF.of(r.conf()).access {
        Some(script) => {
            Answer::Later(Boxed::new(move || before_content(r, Phase::Access, script, Step::Done)))
        }
        None => Answer::Now(Step::Next),
    }
}

/// `precontent_by_lua`
pub fn precontent(r: &mut Request) -> Answer<'_> {
    match &CONF.of(r.conf()).precontent {
        Some(script) => Answer::Later(Boxed::new(move || {
            before_content(r, Phase::Precontent, script, Step::Next)
        })),
        None => Answer::Now(Step::Next),
    }
}

/// The content handler.
pub(super) static CONTENT: ContentHandler<Script> = ContentHandler {
    module: "lua",
    in_limit_except: false,
    optional: true,
    run: |r, settings| Answer::Later(content(r, settings)),
};

/// `content_by_lua`
fn content<'a>(r: &'a mut Request, script: &'static Script) -> Later<'a> {
    Boxed::new(move || in_content(r, script))
}

/// Runs the script of a phase before the content. `consent` is the step if the script lets the
/// request pass. A script that has begun an answer does not, since no other handler may answer
/// then.
async fn before_content(r: &mut Request, phase: Phase, script: &Script, consent: Step) -> Step {
    let step = match perform(r, phase, script).await {
        Err(step) => step,
        Ok(outcome) if answer::is_begun(r) => end(r, outcome).await,
        Ok(ScriptOutcome::Finished | ScriptOutcome::Exit(Exit::Status(0))) => consent,
        Ok(ScriptOutcome::Exit(Exit::Status(DECLINED))) => Step::Next,
        Ok(ScriptOutcome::Exit(Exit::Jump)) => {
            if phase == Phase::Rewrite {
                // The request with the new URI has a new `ngx.ctx`.
                answer::context(r).ctx = None;
            }
            consent
        }
        Ok(outcome) => end(r, outcome).await,
    };
    // The script ended while a light thread was reading the body. The rest is read for the next
    // handler.
    if matches!(step, Step::Next | Step::Done)
        && r.body.is_half_read()
        && let Err(error) = r.read_body().await
    {
        return Step::Status(error.status());
    }
    step
}

async fn in_content(r: &mut Request, script: &Script) -> Step {
    match perform(r, Phase::Content, script).await {
        Err(step) => step,
        Ok(ScriptOutcome::Exit(Exit::Status(DECLINED))) if !answer::is_begun(r) => Step::Next,
        Ok(outcome) => end(r, outcome).await,
    }
}

/// Runs the script of a phase. The error is the step of the request if the script cannot run.
async fn perform(r: &mut Request, phase: Phase, script: &Script) -> Result<ScriptOutcome, Step> {
    let Some(vm) = vm_of(&r.event_loop).cloned() else { return Err(Step::Status(500)) };
    if CONF.of(r.conf()).need_request_body {
        Box::pin(r.read_body()).await?;
    }
    let code = match vm.load(r, script).await {
        Ok(code) => code,
        Err(error) => {
            r.log(Level::Error, format_args!("{error}"));
            let is_missing = !matches!(error, Unloaded::Broken(_));
            return Err(Step::Status(if is_missing { 404 } else { 500 }));
        }
    };
    Ok(run::drive(&vm, Subject::Request(r), phase, Start::Script(&code)).await)
}

/// The step that follows the outcome of a script.
async fn end(r: &mut Request, outcome: ScriptOutcome) -> Step {
    match outcome {
        ScriptOutcome::Finished | ScriptOutcome::Exit(Exit::Jump) => answer::finish(r).await,
        ScriptOutcome::Exit(Exit::Status(status)) => exit(r, status).await,
        ScriptOutcome::Exit(Exit::Exec(path, _)) if path.first() == Some(&b'@') => {
            answer::context(r).forget_output();
            r.redirect_to_named(&path)
        }
        ScriptOutcome::Exit(Exit::Exec(path, args)) => {
            answer::context(r).forget_output();
            r.redirect_to_parts(&path, args)
        }
        ScriptOutcome::Failed => exit(r, 500).await,
        ScriptOutcome::Abandoned => Step::Status(499),
    }
}

/// `ngx.exit(status)`
async fn exit(r: &mut Request, status: i32) -> Step {
    let status = match status {
        // Nothing more is sent, and the connection is closed, as in nginx. The parent of a
        // subrequest has what was written before.
        ERROR => {
            if r.response.sent {
                answer::send_to_parent(r).await;
            }
            return Step::Abort;
        }
        // No other handler can answer any more.
        DECLINED => 0,
        ..0 => 500,
        status => u16::try_from(status).unwrap_or(500),
    };
    if matches!(status, 408 | 444 | 499) {
        return Step::Status(status);
    }
    if r.response.sent {
        // An error page is not possible any more. A failed answer must not look complete.
        if status < 500 {
            return answer::finish(r).await;
        }
        answer::send_to_parent(r).await;
        return Step::Abort;
    }
    match status {
        300.. => {
            answer::context(r).forget_output();
            if r.response.status == 0 {
                // The script of the error page sees the status.
                r.response.status = status;
            }
            Step::Status(status)
        }
        200..300 => {
            // A status that was set before takes precedence.
            if r.response.status == 0 {
                r.response.status = status;
            }
            answer::finish(r).await
        }
        _ => answer::finish(r).await,
    }
}
