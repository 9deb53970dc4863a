//! Clients of POP3. nginx: ngx_mail_pop3_handler.c.

use weir_proto::mail::{self, LineCommand, Pop3Verb};

use crate::auth::{self, may_begin_tls, needs_tls};
use crate::dialog::{self, Step};
use crate::session::{LoginMethod, Session, SessionEnd};
use crate::settings::{Methods, ProtocolConf};
use crate::site::Texts;

const OK: &[u8] = b"+OK\r\n";

/// The names of the methods. LOGIN is there where PLAIN is.
fn names(methods: Methods) -> impl Iterator<Item = &'static str> {
    Methods { login: methods.plain, ..methods }.names()
}

/// What `CAPA` answers.
pub fn texts(conf: &ProtocolConf) -> Texts {
    let list = |with_user: bool, more: &[String]| {
        let mut text = b"+OK Capability list follows\r\n".to_vec();
        let is_told = |word: &&Vec<u8>| with_user || !word.eq_ignore_ascii_case(b"USER");
        let own = conf.capabilities.iter().filter(is_told).map(Vec::as_slice);
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

/// The first line. With digests, it has what they are made with.
pub async fn greet(s: &mut Session) -> Result<(), SessionEnd> {
    let Methods { apop, cram_md5, .. } = s.conf().pop3.methods;
    let mut text = b"+OK POP3 ready".to_vec();
    if apop || cram_md5 {
        text.push(b' ');
        text.extend_from_slice(auth::salt(s));
    }
    text.extend_from_slice(b"\r\n");
    s.say(text).await
}

/// The next command, if it is whole.
pub fn command(s: &mut Session) -> Option<Step> {
    let command = dialog::line(s, mail::pop3)?;
    Some(command.map_or_else(|garbage| garbage, |command| step(s, command)))
}

fn step(s: &mut Session, command: LineCommand<Pop3Verb>) -> Step {
    let LineCommand { verb, mut args, .. } = command;
    match verb {
        Pop3Verb::Quit => Step::Bye(OK.to_vec()),
        Pop3Verb::Noop => Step::Say(OK.to_vec()),
        // Behind a name TLS cannot begin.
        Pop3Verb::Capa => Step::Say(s.server.capabilities(s.named || s.is_secured()).to_vec()),
        Pop3Verb::Pass if s.named && args.len() == 1 => {
            s.named = false;
            auth::logs_in(s, LoginMethod::Plain, args.pop())
        }
        // Behind a name only a password makes sense.
        _ if s.named => Step::Invalid,
        Pop3Verb::User if !needs_tls(s) && args.len() == 1 => {
            (s.login, s.named) = (args.remove(0), true);
            Step::Say(OK.to_vec())
        }
        Pop3Verb::Apop if !needs_tls(s) && args.len() == 2 && s.conf().pop3.methods.apop => {
            let digest = args.pop();
            s.login = args.remove(0);
            auth::logs_in(s, LoginMethod::Apop, digest)
        }
        Pop3Verb::Auth if !needs_tls(s) && args.is_empty() => {
            let lines = names(s.conf().pop3.methods).map(|name| format!("{name}\r\n"));
            let lines: String = lines.collect();
            Step::Say(format!("+OK methods supported:\r\n{lines}.\r\n").into_bytes())
        }
        Pop3Verb::Auth if !needs_tls(s) => auth::begin(s, &args, s.conf().pop3.methods),
        Pop3Verb::Stls if may_begin_tls(s) => Step::StartTls(OK.to_vec()),
        _ => Step::Invalid,
    }
}
