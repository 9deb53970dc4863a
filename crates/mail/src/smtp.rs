//! The commands of SMTP clients. nginx: ngx_mail_smtp_handler.c.

use std::time::Duration;

use weir_engine::{Either, either};
use weir_log::Level;
use weir_proto::mail::{self, LineCommand, SmtpVerb};
use weir_resolver::Unresolved;
use weir_values::Subject;

use crate::auth::{self, may_begin_tls, needs_tls};
use crate::dialog::{self, Step};
use crate::session::{LoginMethod, Session, SessionEnd, SmtpHello};
use crate::settings::ProtocolConf;
use crate::site::Texts;

const OK: &[u8] = b"250 2.0.0 OK\r\n";
const BYE: &[u8] = b"221 2.0.0 Bye\r\n";
const START_TLS: &[u8] = b"220 2.0.0 Start TLS\r\n";
const BAD_ARGUMENT: &[u8] = b"501 5.5.4 Invalid argument\r\n";
const AUTH_REQUIRED: &[u8] = b"530 5.7.1 Authentication required\r\n";
const BAD_SEQUENCE: &[u8] = b"503 5.5.1 Bad sequence of commands\r\n";
const BAD_PIPELINING: &[u8] = b"503 5.5.0 Improper use of SMTP command pipelining\r\n";

/// The host name of a client that has none in the DNS (Postfix, XCLIENT_README).
const UNAVAILABLE: &[u8] = b"[UNAVAILABLE]";
/// The host name of a client whose name could not be looked up.
const TEMPORARILY_UNAVAILABLE: &[u8] = b"[TEMPUNAVAIL]";

/// The reply to `EHLO`.
pub fn texts(conf: &ProtocolConf, server_name: &[u8]) -> Texts {
    let names: String = conf.methods.names().map(|name| format!(" {name}")).collect();
    let auth = (!names.is_empty()).then(|| format!("AUTH{names}").into_bytes());
    let own = || std::iter::once(server_name.to_vec()).chain(conf.capabilities.iter().cloned());
    let lines = |lines: Vec<Vec<u8>>| {
        let (mut text, last) = (Vec::new(), lines.len().saturating_sub(1));
        for (i, line) in lines.iter().enumerate() {
            text.extend_from_slice(if i == last { b"250 " } else { b"250-" });
            text.extend_from_slice(line);
            text.extend_from_slice(b"\r\n");
        }
        text
    };
    let starttls = || std::iter::once(b"STARTTLS".to_vec());
    Texts {
        capabilities: lines(own().chain(auth.clone()).collect()),
        with_starttls: lines(own().chain(auth).chain(starttls()).collect()),
        starttls_only: lines(own().chain(starttls()).collect()),
    }
}

/// Sends the greeting, after the client's host name is looked up and `smtp_greeting_delay` is over.
pub async fn greet(s: &mut Session) -> Result<(), SessionEnd> {
    s.host = host_name(s).await;
    let delay = s.conf().greeting_delay;
    if !delay.is_zero() {
        s.doing = "in delay pipelining state";
        delay_greeting(s, delay).await?;
    }
    s.doing = "sending client greeting line";
    s.deadline = s.event_loop.handle.now() + s.conf().timeout;
    s.send([b"220 ", s.conf().server_name.as_slice(), b" ESMTP ready\r\n"].concat()).await
}

/// Waits for `smtp_greeting_delay`. A client that sends something before the greeting is refused.
async fn delay_greeting(s: &mut Session, delay: Duration) -> Result<(), SessionEnd> {
    let handle = s.event_loop.handle.clone();
    let is_silent = {
        let wire = s.wire()?;
        let waits = s.unread.is_empty() && !wire.is_ready();
        waits && matches!(either(wire.readable(), handle.sleep(delay)).await, Either::Right(()))
    };
    if is_silent {
        return Ok(());
    }
    if s.unread.is_empty() {
        s.receive(s.conf().smtp.buffer).await?;
    }
    log_rejected(s, "client was rejected before greeting", &s.unread);
    Err(SessionEnd::Reply(BAD_PIPELINING.to_vec()))
}

/// Logs a refused command on one line.
fn log_rejected(s: &Session, what: &str, command: &[u8]) {
    let mut line = command.to_vec();
    line.iter_mut().filter(|b| matches!(b, b'\r' | b'\n')).for_each(|b| *b = b'_');
    s.log(Level::Info, format_args!("{what}: \"{}\"", String::from_utf8_lossy(&line)));
}

/// The client's host name from the DNS, if the name resolves to the client's address.
async fn host_name(s: &mut Session) -> Vec<u8> {
    let conf = s.conf();
    let Some(resolver) = &conf.resolver else { return UNAVAILABLE.to_vec() };
    let Some(ip) = s.peer().ip() else { return TEMPORARILY_UNAVAILABLE.to_vec() };
    let unresolved = |why: &Unresolved| match why {
        why if *why == Unresolved::NO_SUCH_NAME => UNAVAILABLE.to_vec(),
        _ => TEMPORARILY_UNAVAILABLE.to_vec(),
    };
    s.doing = "in resolving client address";
    let (resolver, handle) = (s.event_loop.resolvers.of(resolver), s.event_loop.handle.clone());
    let name = match resolver.pointer(&handle, ip, conf.resolver_timeout).await {
        Ok(name) => name,
        Err(why) => {
            s.log(Level::Error, format_args!("{ip} could not be resolved ({why})"));
            return unresolved(&why);
        }
    };
    // RFC 1034, section 3.5.
    let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.');
    if name.is_empty() || !name.bytes().all(is_host) {
        s.log(Level::Error, format_args!("{ip} resolved to invalid host name \"{name}\""));
        return TEMPORARILY_UNAVAILABLE.to_vec();
    }
    s.doing = "in resolving client hostname";
    match resolver.resolve(&handle, &name, conf.resolver_timeout).await {
        Ok(found) if found.addresses.contains(&ip) => name.into_bytes(),
        Ok(_) => UNAVAILABLE.to_vec(),
        Err(why) => {
            s.log(Level::Error, format_args!("\"{name}\" could not be resolved ({why})"));
            unresolved(&why)
        }
    }
}

/// The next command. `None`: it is incomplete.
pub fn command(s: &mut Session) -> Option<Step> {
    let command = dialog::line(s, mail::smtp)?;
    Some(command.map_or_else(|no_command| no_command, |command| step(s, command)))
}

fn step(s: &mut Session, command: LineCommand<SmtpVerb>) -> Step {
    let LineCommand { verb, mut args, text } = command;
    match verb {
        SmtpVerb::Helo | SmtpVerb::Ehlo if args.len() != 1 => Step::Reply(BAD_ARGUMENT.to_vec()),
        SmtpVerb::Helo => {
            s.hello =
                SmtpHello { helo: args.remove(0), esmtp: s.hello.esmtp, ..Default::default() };
            Step::Reply([b"250 ", s.conf().server_name.as_slice(), b"\r\n"].concat())
        }
        SmtpVerb::Ehlo => {
            let helo = args.remove(0);
            s.hello = SmtpHello { helo, esmtp: true, ..Default::default() };
            Step::Reply(s.server.capabilities(s.is_secured()).to_vec())
        }
        SmtpVerb::Auth if needs_tls(s) => Step::Invalid,
        SmtpVerb::Auth if args.is_empty() => Step::Reply(BAD_ARGUMENT.to_vec()),
        SmtpVerb::Auth => auth::authenticate(s, &args, s.conf().smtp.methods),
        SmtpVerb::Quit => Step::LastReply(BYE.to_vec()),
        SmtpVerb::Noop => Step::Reply(OK.to_vec()),
        SmtpVerb::Rset => {
            s.hello.from.clear();
            s.hello.to.clear();
            Step::Reply(OK.to_vec())
        }
        SmtpVerb::Mail if !s.conf().smtp.methods.none => {
            log_rejected(s, "client was rejected", &text);
            Step::Reply(AUTH_REQUIRED.to_vec())
        }
        SmtpVerb::Mail if !s.hello.from.is_empty() => Step::Reply(BAD_SEQUENCE.to_vec()),
        SmtpVerb::Mail if args.is_empty() => Step::Reply(BAD_ARGUMENT.to_vec()),
        SmtpVerb::Mail => {
            s.hello.from = text;
            s.login.clear();
            s.password = None;
            Step::Reply(OK.to_vec())
        }
        SmtpVerb::Rcpt if s.hello.from.is_empty() => Step::Reply(BAD_SEQUENCE.to_vec()),
        SmtpVerb::Rcpt if args.is_empty() => Step::Reply(BAD_ARGUMENT.to_vec()),
        SmtpVerb::Rcpt => {
            s.hello.to = text;
            auth::log_in_with(s, LoginMethod::None, None)
        }
        SmtpVerb::StartTls if may_begin_tls(s) => Step::StartTls(START_TLS.to_vec()),
        SmtpVerb::StartTls | SmtpVerb::Other => Step::Invalid,
    }
}
