//! Clients of POP3. nginx: ngx_mail_pop3_handler.c.

use weir_proto::mail::{self, LineCommand, LineProgress, Pop3Verb};

use crate::auth::{self, may_begin_tls, needs_tls};
use crate::dialog::Step;
use crate::session::{LoginMethod, Session, SessionEnd};
use crate::settings::{Methods, ProtocolConf, StartTls};
use crate::site::Texts;

const OK: &[u8] = b"+OK\r\n";

/// The names of the methods, as they are told.
fn names(methods: Methods) -> Vec<&'static str> {
    let named = [
        (methods.plain, "PLAIN"),
        (methods.plain, "LOGIN"),
        (methods.cram_md5, "CRAM-MD5"),
        (methods.external, "EXTERNAL"),
    ];
    named.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name).collect()
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
    let methods: Vec<String> =
        names(conf.methods).into_iter().map(|name| format!(" {name}")).collect();
    let sasl = format!("SASL{}", methods.concat());
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
    let command = match mail::pop3(&s.unread) {
        LineProgress::More => return None,
        LineProgress::Invalid { len } => {
            s.unread.drain(..len);
            return Some(Step::Garbage { ends: false });
        }
        LineProgress::Command { command, len } => {
            s.unread.drain(..len);
            command
        }
    };
    Some(step(s, command))
}

fn step(s: &mut Session, command: LineCommand<Pop3Verb>) -> Step {
    let LineCommand { verb, mut args, .. } = command;
    match verb {
        Pop3Verb::Quit => Step::Bye(OK.to_vec()),
        Pop3Verb::Noop => Step::Say(OK.to_vec()),
        Pop3Verb::Capa => Step::Say(capabilities(s)),
        Pop3Verb::Pass if s.named && args.len() == 1 => {
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
            let lines = names(s.conf().pop3.methods).into_iter().map(|name| format!("{name}\r\n"));
            let lines: String = lines.collect();
            Step::Say(format!("+OK methods supported:\r\n{lines}.\r\n").into_bytes())
        }
        Pop3Verb::Auth if !needs_tls(s) => auth::begin(s, &args, s.conf().pop3.methods),
        Pop3Verb::Stls if may_begin_tls(s) => Step::StartTls(OK.to_vec()),
        _ => Step::Invalid,
    }
}

fn capabilities(s: &Session) -> Vec<u8> {
    let texts = &s.server.texts;
    match s.conf().starttls {
        _ if s.named || s.is_secured() => texts.capabilities.clone(),
        StartTls::Off => texts.capabilities.clone(),
        StartTls::On => texts.with_starttls.clone(),
        StartTls::Only => texts.starttls_only.clone(),
    }
}
