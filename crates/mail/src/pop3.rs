//! The commands of POP3 clients. nginx: ngx_mail_pop3_handler.c.

use weir_proto::mail::{self, LineCommand, Pop3Verb};

use crate::auth::{self, may_begin_tls, needs_tls};
use crate::dialog::{self, Step};
use crate::session::{LoginMethod, Session, SessionEnd};
use crate::settings::{Methods, ProtocolConf};
use crate::site::Texts;

const OK: &[u8] = b"+OK\r\n";

/// The names of the SASL mechanisms. LOGIN is offered together with PLAIN.
fn names(methods: Methods) -> impl Iterator<Item = &'static str> {
    Methods { login: methods.plain, ..methods }.names()
}

/// The reply to `CAPA`.
pub fn texts(conf: &ProtocolConf) -> Texts {
    let list = |with_user: bool, more: &[String]| {
        let mut text = b"+OK Capability list follows\r\n".to_vec();
        let is_listed = |word: &&Vec<u8>| with_user || !word.eq_ignore_ascii_case(b"USER");
        let own = conf.capabilities.iter().filter(is_listed).map(Vec::as_slice);
        for line in own.chain(more.iter().map(String::as_bytes)) {
            text.extend_from_slice(line);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b".\r\n");
        text
    };
    let methods: String = names(conf.methods).map(|name| format!(" {name}")).collect();
    let sasl = format!("SASL{methods}");
    let stls = "STLS".to_owned();
    Texts {
        capabilities: list(true, std::slice::from_ref(&sasl)),
        with_starttls: list(true, &[sasl, stls.clone()]),
        starttls_only: list(false, &[stls]),
    }
}

/// Sends the greeting. It contains the timestamp of APOP and CRAM-MD5 if one of them is enabled.
pub async fn greet(s: &mut Session) -> Result<(), SessionEnd> {
    let Methods { apop, cram_md5, .. } = s.conf().pop3.methods;
    let mut text = b"+OK POP3 ready".to_vec();
    if apop || cram_md5 {
        text.push(b' ');
        text.extend_from_slice(auth::salt(s));
    }
    text.extend_from_slice(b"\r\n");
    s.send(text).await
}

/// The next command. `None`: it is incomplete.
pub fn command(s: &mut Session) -> Option<Step> {
    let command = dialog::line(s, mail::pop3)?;
    Some(command.map_or_else(|no_command| no_command, |command| step(s, command)))
}

fn step(s: &mut Session, command: LineCommand<Pop3Verb>) -> Step {
    let LineCommand { verb, mut args, .. } = command;
    match verb {
        Pop3Verb::Quit => Step::LastReply(OK.to_vec()),
        Pop3Verb::Noop => Step::Reply(OK.to_vec()),
        // Between `USER` and `PASS`, TLS cannot be started, so it is not offered.
        Pop3Verb::Capa => Step::Reply(s.server.capabilities(s.has_user || s.is_secured()).to_vec()),
        Pop3Verb::Pass if s.has_user && args.len() == 1 => {
            s.has_user = false;
            auth::log_in_with(s, LoginMethod::Plain, args.pop())
        }
        // After `USER` only `PASS` is allowed, besides the commands above.
        _ if s.has_user => Step::Invalid,
        Pop3Verb::User if !needs_tls(s) && args.len() == 1 => {
            (s.login, s.has_user) = (args.remove(0), true);
            Step::Reply(OK.to_vec())
        }
        Pop3Verb::Apop if !needs_tls(s) && args.len() == 2 && s.conf().pop3.methods.apop => {
            let digest = args.pop();
            s.login = args.remove(0);
            auth::log_in_with(s, LoginMethod::Apop, digest)
        }
        Pop3Verb::Auth if !needs_tls(s) && args.is_empty() => {
            let lines = names(s.conf().pop3.methods).map(|name| format!("{name}\r\n"));
            let lines: String = lines.collect();
            Step::Reply(format!("+OK methods supported:\r\n{lines}.\r\n").into_bytes())
        }
        Pop3Verb::Auth if !needs_tls(s) => auth::authenticate(s, &args, s.conf().pop3.methods),
        Pop3Verb::Stls if may_begin_tls(s) => Step::StartTls(OK.to_vec()),
        _ => Step::Invalid,
    }
}
