//! The commands of IMAP clients. nginx: ngx_mail_imap_handler.c.

use weir_proto::mail::{self, ImapCommand, ImapProgress, ImapVerb};

use crate::auth::{self, may_begin_tls, needs_tls};
use crate::dialog::Step;
use crate::session::{LoginMethod, Session};
use crate::settings::ProtocolConf;
use crate::site::Texts;

/// The reply to `CAPABILITY`.
pub fn texts(conf: &ProtocolConf) -> Texts {
    let methods: String = conf.methods.names().map(|name| format!(" AUTH={name}")).collect();
    let line = |more: &[&str]| {
        let mut text = b"* CAPABILITY".to_vec();
        for word in &conf.capabilities {
            text.push(b' ');
            text.extend_from_slice(word);
        }
        text.extend_from_slice(more.concat().as_bytes());
        text.extend_from_slice(b"\r\n");
        text
    };
    Texts {
        capabilities: line(&[&methods]),
        with_starttls: line(&[&methods, " STARTTLS"]),
        starttls_only: line(&[" STARTTLS LOGINDISABLED"]),
    }
}

/// The next command. `None`: it is incomplete.
pub fn command(s: &mut Session) -> Option<Step> {
    match mail::imap(&s.unread, s.literals) {
        ImapProgress::More => None,
        ImapProgress::Literal => {
            s.literals += 1;
            Some(Step::Reply(b"+ OK\r\n".to_vec()))
        }
        ImapProgress::Invalid { tag, len, literal_follows } => {
            s.unread.drain(..len);
            (s.tag, s.literals) = (tag, 0);
            Some(Step::NoCommand { ends: literal_follows })
        }
        ImapProgress::Command { command, len } => {
            s.unread.drain(..len);
            s.literals = 0;
            Some(step(s, command))
        }
    }
}

fn step(s: &mut Session, command: ImapCommand) -> Step {
    let ImapCommand { tag, verb, mut args } = command;
    s.tag = tag;
    match verb {
        ImapVerb::Noop => Step::Reply(done(s, b"")),
        ImapVerb::Logout => Step::LastReply(done(s, b"* BYE\r\n")),
        ImapVerb::Capability => Step::Reply(done(s, s.server.capabilities(s.is_secured()))),
        ImapVerb::StartTls if may_begin_tls(s) => Step::StartTls(done(s, b"")),
        ImapVerb::Login if !needs_tls(s) && args.len() == 2 && !args[0].is_empty() => {
            let password = args.pop();
            s.login = args.remove(0);
            auth::log_in_with(s, LoginMethod::Plain, password)
        }
        ImapVerb::Authenticate if !needs_tls(s) => {
            auth::authenticate(s, &args, s.conf().imap.methods)
        }
        _ => Step::Invalid,
    }
}

/// Untagged lines, and then the tagged OK.
fn done(s: &Session, before: &[u8]) -> Vec<u8> {
    [before, &s.tag, b"OK completed\r\n"].concat()
}
