//! The phases of sessions: preread, content, log.

use std::rc::Rc;

use mlua::MultiValue;
use weir_engine::Boxed;
use weir_log::Level;
use weir_ssl::scripted::{self, ScriptEnd, ServerChoice, SessionScripts};
use weir_ssl::server::AcceptError;
use weir_tls::HandshakeError;

use super::{begin, send, take_back};
use crate::event_loop::LoopState;
use crate::modules::lua::balancer;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::current::{Phase, Scripted, Subject};
use crate::modules::lua::phases::{DECLINED, ERROR};
use crate::modules::lua::run::{self, ScriptOutcome, Start};
use crate::modules::lua::script::{SESSIONS, Script};
use crate::modules::lua::vm::{Code, Compiled, ScriptError, VM, Vm};
use crate::modules::lua::yield_request::Exit;
use crate::upstream::choosing::{Chosen, Selection, Situation};

/// The statuses of sessions that ended normally, and that the server could not serve.
const OK: u16 = 200;
const FAILED: u16 = 500;

/// Runs scripts of sessions on a loop.
pub struct SessionRunner(Rc<Vm>);

impl SessionRunner {
    /// `None` if the loop has no VM for sessions.
    pub fn of(event_loop: &LoopState) -> Option<SessionRunner> {
        VM.of(event_loop).sessions.get().cloned().map(SessionRunner)
    }

    /// The compiled script. `None` if that fails, which is logged.
    fn load(&self, s: &mut Scripted, script: Option<&Script>) -> Option<Code> {
        let code = match script {
            Some(script) => self.0.code_of_session(script),
            None => Err(ScriptError::Unknown),
        };
        code.map_err(|error| s.log(Level::Error, format_args!("{error}"))).ok()
    }

    /// Runs a script that may not yield. An error is logged.
    fn at_once(
        &self,
        s: &mut Scripted,
        phase: Phase,
        code: &Compiled,
    ) -> Result<Result<MultiValue, Exit>, ()> {
        let done = run::at_once(&self.0, Subject::Session(s), phase, code, MultiValue::new());
        done.map_err(|error| {
            let (name, place) = (phase.directive(), phase.in_log());
            s.log(Level::Error, format_args!("failed to run {name}: {error}{place}"));
        })
    }

    async fn perform(&self, s: &mut Scripted, phase: Phase) -> ScriptEnd {
        let conf = CONF.of(begin(s, &self.0));
        let script = if phase == Phase::Preread { &conf.preread } else { &conf.session };
        let Some(code) = self.load(s, script.as_ref()) else { return ScriptEnd::Over(FAILED) };
        let start = Start::Script(&code);
        let outcome = run::drive(&self.0, Subject::Session(s), phase, start).await;
        // If sending fails, the client is gone.
        let _ = send(s, false).await;
        take_back(s);
        end(&outcome)
    }
}

/// What follows from the outcome of a script.
fn end(outcome: &ScriptOutcome) -> ScriptEnd {
    match outcome {
        ScriptOutcome::Finished | ScriptOutcome::Exit(Exit::Status(0 | DECLINED)) => {
            ScriptEnd::Next
        }
        ScriptOutcome::Exit(Exit::Status(ERROR)) => ScriptEnd::Over(FAILED),
        ScriptOutcome::Exit(Exit::Status(status @ 300..)) => {
            ScriptEnd::Over(u16::try_from(*status).unwrap_or(FAILED))
        }
        ScriptOutcome::Exit(Exit::Status(1..)) => ScriptEnd::Over(OK),
        ScriptOutcome::Exit(_) | ScriptOutcome::Failed | ScriptOutcome::Abandoned => {
            ScriptEnd::Over(FAILED)
        }
    }
}

impl SessionRunner {
    /// Runs a phase of a handshake.
    async fn decide(&self, s: &mut Scripted, phase: Phase) -> Result<(), AcceptError> {
        let conf = CONF.of(begin(s, &self.0));
        let (script, failed) = match phase {
            Phase::ClientHello => (&conf.client_hello, "callback failed"),
            _ => (&conf.certificate, "cert cb error"),
        };
        if let Some(handshake) = s.handshake() {
            handshake.place = phase.in_log();
        }
        let Some(code) = self.load(s, script.as_ref()) else {
            return Err(AcceptError::Script(failed));
        };
        match run::drive(&self.0, Subject::Session(s), phase, Start::Script(&code)).await {
            ScriptOutcome::Abandoned => Err(HandshakeError::Closed.into()),
            ScriptOutcome::Failed | ScriptOutcome::Exit(Exit::Status(ERROR | 400..)) => {
                Err(AcceptError::Script(failed))
            }
            ScriptOutcome::Finished | ScriptOutcome::Exit(_) => Ok(()),
        }
    }
}

impl SessionScripts for SessionRunner {
    fn client_hello<'a>(&'a self, session: &'a mut Scripted) -> Boxed<'a, Result<(), AcceptError>> {
        Boxed::new(move || self.decide(session, Phase::ClientHello))
    }

    fn certificate<'a>(&'a self, session: &'a mut Scripted) -> Boxed<'a, Result<(), AcceptError>> {
        Boxed::new(move || self.decide(session, Phase::Certificate))
    }

    fn preread<'a>(&'a self, session: &'a mut Scripted) -> Boxed<'a, ScriptEnd> {
        Boxed::new(move || self.perform(session, Phase::Preread))
    }

    fn content<'a>(&'a self, session: &'a mut Scripted) -> Boxed<'a, ScriptEnd> {
        Boxed::new(move || self.perform(session, Phase::Session))
    }

    fn choose(
        &self,
        group: &str,
        session: &mut Scripted,
        choice: &mut ServerChoice,
    ) -> scripted::Chosen {
        begin(session, &self.0);
        let all = &SESSIONS.of(&self.0.site.main_confs).balancers;
        let script = all.iter().find(|(name, _)| name == group.as_bytes());
        let script = script.map(|(_, id)| Script::Known(*id));
        let Some(code) = self.load(session, script.as_ref()) else {
            return scripted::Chosen::Ends(FAILED);
        };
        let ServerChoice { tries, most, has_servers, before, .. } = *choice;
        let situation = Situation { tries, most, has_servers, idle: 0 };
        let mut selection = Selection { before, ..Selection::default() };
        let chosen = balancer::choosing(situation, &mut selection, || {
            self.at_once(session, Phase::Balancer, &code)
        });
        let times = selection.times;
        choice.idle = times.send.max(times.read).or(choice.idle);
        choice.connect = times.connect.or(choice.connect);
        choice.from = selection.from.or(choice.from);
        (choice.peer, choice.more) = (selection.peer, selection.more);
        match chosen {
            Chosen::Goes if choice.peer.is_none() && !has_servers => {
                let place = Phase::Balancer.in_log();
                session.log(Level::Error, format_args!("lua balancer: no peer set{place}"));
                scripted::Chosen::Ends(FAILED)
            }
            Chosen::Goes => scripted::Chosen::Goes,
            Chosen::Ends(status) => scripted::Chosen::Ends(status),
            Chosen::Fails => scripted::Chosen::Fails,
        }
    }

    fn log(&self, session: &mut Scripted) {
        let script = CONF.of(begin(session, &self.0)).log.as_ref();
        let Some(code) = self.load(session, script) else { return };
        let _ = self.at_once(session, Phase::SessionLog, &code);
    }
}
