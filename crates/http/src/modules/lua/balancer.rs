//! `balancer_by_lua`: a script of an `upstream { }` chooses the server of each attempt.

use std::cell::RefCell;

use mlua::MultiValue;
use weir_conf::{Directive, Error, values};
use weir_log::Level;

use super::current::Phase;
use super::filters::at_once;
use super::phases::{DECLINED, ERROR};
use super::script::{Script, read_known};
use super::yield_request::Exit;
use crate::config::scope::Scope;
use crate::request::Request;
use crate::upstream::choosing::{Choose, Chosen, Selection, Situation};
use crate::upstream::groups::{Block, GROUPS};

thread_local! {
    /// The choice of the running script, and the state of its request.
    static CHOICE: RefCell<Option<(Situation, Selection)>> = const { RefCell::new(None) };
}

/// Calls `f` with the choice of the running script, if that is a balancer's.
pub fn with_choice<T>(f: impl FnOnce(&Situation, &mut Selection) -> T) -> Option<T> {
    CHOICE.with_borrow_mut(|choice| {
        choice.as_mut().map(|(situation, selection)| f(situation, selection))
    })
}

#[derive(Debug)]
struct BalancerScript(Script);

impl Choose for BalancerScript {
    fn choose(&self, r: &mut Request, situation: Situation, selection: &mut Selection) -> Chosen {
        let run = || at_once(r, Phase::Balancer, &self.0, MultiValue::new());
        let chosen = choosing(situation, selection, run);
        if chosen == Chosen::Goes && selection.peer.is_none() && !situation.has_servers {
            let place = Phase::Balancer.in_log();
            r.log(Level::Error, format_args!("lua balancer: no peer set{place}"));
            return Chosen::Ends(500);
        }
        chosen
    }
}

/// Runs a script that chooses a server.
pub fn choosing(
    situation: Situation,
    selection: &mut Selection,
    run: impl FnOnce() -> Result<Result<MultiValue, Exit>, ()>,
) -> Chosen {
    CHOICE.set(Some((situation, std::mem::take(selection))));
    let done = run();
    if let Some((_, chosen)) = CHOICE.take() {
        *selection = chosen;
    }
    match done {
        Ok(Ok(_)) => Chosen::Goes,
        Ok(Err(Exit::Status(status))) => by_status(status),
        Ok(Err(_)) | Err(()) => Chosen::Ends(500),
    }
}

/// The outcome of `ngx.exit` with this status.
fn by_status(status: i32) -> Chosen {
    match status {
        DECLINED => Chosen::Fails,
        ERROR | 1..300 => Chosen::Ends(500),
        ..=0 => Chosen::Goes,
        status => Chosen::Ends(u16::try_from(status).unwrap_or(500)),
    }
}

/// `balancer_by_lua_block` and `balancer_by_lua_file`
pub fn script(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let script = Script::Known(read_known(s, d, 0)?);
    let block = block(s, d)?;
    if block.extras.chooser.replace(Box::new(BalancerScript(script))).is_some() {
        return Err(d.problem("is duplicate"));
    }
    if block.balance.is_some() || block.extras.sticky.is_some() {
        s.setup.warnings.push(d.warning("load balancing method redefined"));
    }
    Ok(())
}

/// `balancer_keepalive CONNECTIONS`
pub fn keepalive(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let connections = values::number(&word.bytes).and_then(|n| usize::try_from(n).ok());
    let Some(connections) = connections.filter(|n| *n > 0) else {
        let text =
            format!("invalid value \"{}\" in \"balancer_keepalive\" directive", word.lossy());
        return Err(d.error_at(word, text));
    };
    if block(s, d)?.extras.idle.replace(connections).is_some() {
        return Err(d.problem("is duplicate"));
    }
    Ok(())
}

/// The `upstream` block that is being read. The directives are allowed in no other.
fn block<'s>(s: &'s mut Scope<'_, '_>, d: &Directive) -> Result<&'s mut Block, Error> {
    let draft = GROUPS.draft(&mut s.setup.drafts);
    draft.block.as_mut().ok_or_else(|| d.problem("is not allowed here"))
}
