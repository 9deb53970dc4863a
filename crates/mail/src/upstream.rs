//! Logs the client in at its server, and passes on what both say. nginx: ngx_mail_proxy_module.

use std::time::Instant;

use weir_engine::{Chain, ConnectOptions, Patience, Stream};
use weir_log::{Cause, Level};
use weir_metrics::Metric;
use weir_proto::base64::{self, Alphabet};
use weir_proto::proxy_protocol::{self, Extras};
use weir_proto::uri::{Escape, escape};
use weir_tls::{Wire, failed_call};
use weir_upstream::fault;
use weir_upstream::tunnel::{self, PassedBytes, TunnelEnd, TunnelError, TunnelOptions};
use weir_values::presence::Presence;
use weir_values::{Address, Subject, doing};

use crate::auth_http::{MailServer, client_address};
use crate::protocol::Protocol;
use crate::serve::unreachable;
use crate::session::{LoginMethod, Session, SessionEnd};

/// What a client of SMTP hears that has logged in.
const SMTP_DONE: &[u8] = b"235 2.0.0 OK\r\n";

/// Passes the client on.
pub async fn pass(
    s: &mut Session,
    presence: &Presence,
    server: MailServer,
) -> Result<(), SessionEnd> {
    s.doing = "connecting to upstream";
    doing::note("the log-in at the server", "", s.server);
    s.upstream = Some(server.name);
    check(s)?;
    let handle = s.event_loop.handle.clone();
    let until = handle.now() + s.conf().timeout;
    let how = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
    let connected = handle.connect(&server.address.into(), &how).await;
    let stream = connected.map_err(|error| not_connected(s, &error))?;
    let _ = stream.nodelay(true);
    let mut speaker = Speaker { stream: &stream, until, heard: Vec::new() };
    introduce(s, &mut speaker).await?;
    match s.protocol() {
        Protocol::Pop3 => pop3(s, &mut speaker).await?,
        Protocol::Imap => imap(s, &mut speaker).await?,
        Protocol::Smtp => smtp(s, &mut speaker).await?,
    }
    let greeting = match s.protocol() {
        Protocol::Smtp if s.method != LoginMethod::None => SMTP_DONE.to_vec(),
        _ => std::mem::take(&mut speaker.heard),
    };
    stream.set_deadline(None);
    s.doing = "";
    s.log(Level::Info, format_args!("client logged in"));
    presence.quiet();
    converse(s, Wire::join(stream, None), greeting).await
}

fn not_connected(s: &Session, error: &std::io::Error) -> SessionEnd {
    // What takes too long is told as nginx tells it.
    let level = if fault::is_late(error) { Level::Info } else { Level::Error };
    s.log(level, format_args!("{}", unreachable(error)));
    SessionEnd::Internal
}

/// A name or password that would be two lines, or two words, to the server is refused.
fn check(s: &Session) -> Result<(), SessionEnd> {
    let breaks = |b: &u8| match s.protocol() {
        Protocol::Pop3 => matches!(b, b'\r' | b'\n' | 0),
        Protocol::Imap | Protocol::Smtp => *b == 0,
    };
    let password = s.password.as_deref().unwrap_or_default();
    if s.login.iter().chain(password).any(breaks) {
        return Err(s.fail(format_args!(
            "user name or password has a character that upstream cannot be sent"
        )));
    }
    Ok(())
}

/// The connection to a server until its client is logged in there.
struct Speaker<'a> {
    stream: &'a Stream,
    until: Instant,
    /// The last answer.
    heard: Vec<u8>,
}

impl Speaker<'_> {
    async fn say(&mut self, s: &Session, line: Vec<u8>) -> Result<(), SessionEnd> {
        let mut chain = Chain::new();
        chain.push(line);
        let sent = self.stream.send(&mut chain, Patience::Until(self.until)).await;
        sent.map_err(|error| self.failed(s, "send()", &error))
    }

    fn failed(&self, s: &Session, call: &str, error: &std::io::Error) -> SessionEnd {
        if fault::is_late(error) {
            let cause = fault::late();
            s.log(Level::Info, format_args!("upstream timed out {}", Cause(&cause)));
            return SessionEnd::Internal;
        }
        s.fail(format_args!("{} failed {}", failed_call(call, error), Cause(error)))
    }

    /// Reads an answer, which must be one of these.
    async fn hear(&mut self, s: &mut Session, wanted: Wanted) -> Result<(), SessionEnd> {
        s.doing = "reading response from upstream";
        let most = s.conf().proxy.buffer;
        self.heard.clear();
        self.stream.set_deadline(Some(self.until));
        loop {
            self.heard.reserve_exact(most.saturating_sub(self.heard.len()).max(1));
            let (result, bytes) = self.stream.recv(std::mem::take(&mut self.heard)).await;
            self.heard = bytes;
            match result {
                Ok(0) => {
                    return Err(s.fail(format_args!("upstream prematurely closed connection")));
                }
                Ok(_) => {}
                Err(error) => return Err(self.failed(s, "recv()", &error)),
            }
            match wanted.is_in(&self.heard, &s.tag) {
                Heard::Good => return Ok(()),
                Heard::Bad => return Err(self.bad(s)),
                Heard::Part if self.heard.len() >= most => {
                    let text = String::from_utf8_lossy(&self.heard);
                    return Err(
                        s.fail(format_args!("upstream sent too long response line: \"{text}\""))
                    );
                }
                Heard::Part => {}
            }
        }
    }

    /// The server does not want the client.
    fn bad(&mut self, s: &Session) -> SessionEnd {
        let line = String::from_utf8_lossy(self.heard.trim_ascii_end());
        if !s.conf().proxy.pass_error_message {
            return s.fail(format_args!("upstream sent invalid response: \"{line}\""));
        }
        s.log(Level::Info, format_args!("upstream sent invalid response: \"{line}\""));
        SessionEnd::Told(std::mem::take(&mut self.heard))
    }
}

/// What an answer must be.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// POP3: `+OK`.
    Pop3,
    /// IMAP's greeting.
    ImapGreeting,
    /// IMAP: leave to send a literal.
    ImapLiteral,
    /// IMAP: the command is done.
    ImapDone,
    /// SMTP: one of these codes. None: any.
    Smtp(&'static [&'static [u8; 3]]),
}

/// What has come so far.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Part,
    Good,
    Bad,
}

impl Wanted {
    fn is_in(self, heard: &[u8], tag: &[u8]) -> Heard {
        let judge = |good: bool| if good { Heard::Good } else { Heard::Bad };
        if heard.len() < 4 || !heard.ends_with(b"\r\n") {
            return Heard::Part;
        }
        match self {
            Wanted::Pop3 => judge(heard.starts_with(b"+OK")),
            Wanted::ImapGreeting => judge(heard.starts_with(b"* OK")),
            Wanted::ImapLiteral => judge(heard.starts_with(b"+")),
            Wanted::ImapDone => {
                // Some servers tell their capabilities first.
                let mut lines = heard.split_inclusive(|b| *b == b'\n');
                match lines.find(|line| !line.starts_with(b"* ")) {
                    None => Heard::Part,
                    Some(line) => {
                        judge(line.strip_prefix(tag).is_some_and(|rest| rest.starts_with(b"OK")))
                    }
                }
            }
            Wanted::Smtp(codes) => {
                let last = heard.split_inclusive(|b| *b == b'\n').next_back().unwrap_or_default();
                // An answer of several lines ends with the one that has no hyphen.
                if last.get(3) == Some(&b'-') {
                    return Heard::Part;
                }
                judge(codes.is_empty() || codes.iter().any(|code| heard.starts_with(*code)))
            }
        }
    }
}

/// Tells the server the client's address.
async fn introduce(s: &mut Session, speaker: &mut Speaker<'_>) -> Result<(), SessionEnd> {
    let Some(version) = s.conf().proxy.proxy_protocol else { return Ok(()) };
    s.doing = "sending PROXY protocol header to upstream";
    let ends = match (client_address(s), s.local()) {
        (Some(from), Address::Inet(to)) => Some((from, *to)),
        _ => None,
    };
    let mut head = Vec::new();
    proxy_protocol::write(version, ends, false, &Extras::default(), &mut head);
    speaker.say(s, head).await
}

async fn pop3(s: &mut Session, speaker: &mut Speaker<'_>) -> Result<(), SessionEnd> {
    speaker.hear(s, Wanted::Pop3).await?;
    s.doing = "sending user name to upstream";
    speaker.say(s, [b"USER ", s.login.as_slice(), b"\r\n"].concat()).await?;
    speaker.hear(s, Wanted::Pop3).await?;
    s.doing = "sending password to upstream";
    let password = s.password.as_deref().unwrap_or_default();
    speaker.say(s, [b"PASS ", password, b"\r\n"].concat()).await?;
    speaker.hear(s, Wanted::Pop3).await
}

async fn imap(s: &mut Session, speaker: &mut Speaker<'_>) -> Result<(), SessionEnd> {
    let literal = |bytes: &[u8]| format!("{{{}}}\r\n", bytes.len()).into_bytes();
    speaker.hear(s, Wanted::ImapGreeting).await?;
    s.doing = "sending LOGIN command to upstream";
    speaker.say(s, [s.tag.as_slice(), b"LOGIN ", &literal(&s.login)].concat()).await?;
    speaker.hear(s, Wanted::ImapLiteral).await?;
    s.doing = "sending user name to upstream";
    let password = s.password.as_deref().unwrap_or_default();
    speaker.say(s, [s.login.as_slice(), b" ", &literal(password)].concat()).await?;
    speaker.hear(s, Wanted::ImapLiteral).await?;
    s.doing = "sending password to upstream";
    let password = s.password.as_deref().unwrap_or_default();
    speaker.say(s, [password, b"\r\n"].concat()).await?;
    speaker.hear(s, Wanted::ImapDone).await
}

async fn smtp(s: &mut Session, speaker: &mut Speaker<'_>) -> Result<(), SessionEnd> {
    const DONE: Wanted = Wanted::Smtp(&[b"250"]);
    let proxy = &s.conf().proxy;
    speaker.hear(s, Wanted::Smtp(&[b"220"])).await?;
    s.doing = "sending HELO/EHLO to upstream";
    let verb: &[u8] = if s.hello.esmtp || proxy.xclient { b"EHLO " } else { b"HELO " };
    speaker.say(s, [verb, &s.conf().server_name, b"\r\n"].concat()).await?;
    speaker.hear(s, DONE).await?;
    if proxy.xclient {
        s.doing = "sending XCLIENT to upstream";
        let line = xclient(s);
        speaker.say(s, line).await?;
        speaker.hear(s, Wanted::Smtp(&[b"220", b"250"])).await?;
        if !s.hello.helo.is_empty() {
            s.doing = "sending client HELO/EHLO to upstream";
            let verb: &[u8] = if s.hello.esmtp { b"EHLO " } else { b"HELO " };
            speaker.say(s, [verb, &s.hello.helo, b"\r\n"].concat()).await?;
            speaker.hear(s, DONE).await?;
        }
    }
    if s.method == LoginMethod::None {
        s.doing = "sending MAIL FROM to upstream";
        speaker.say(s, [s.hello.from.as_slice(), b"\r\n"].concat()).await?;
        speaker.hear(s, DONE).await?;
        s.doing = "sending RCPT TO to upstream";
        speaker.say(s, [s.hello.to.as_slice(), b"\r\n"].concat()).await?;
        // The client is told what the server says to its recipient.
        speaker.hear(s, Wanted::Smtp(&[])).await?;
    } else if proxy.smtp_auth {
        s.doing = "sending AUTH to upstream";
        let Some(password) = &s.password else {
            return Err(s.fail(format_args!("no password available")));
        };
        let mut line = b"AUTH PLAIN ".to_vec();
        let both = [b"\0".as_slice(), &s.login, b"\0", password].concat();
        base64::encode(Alphabet::Plain, &both, &mut line);
        line.extend_from_slice(b"\r\n");
        speaker.say(s, line).await?;
        speaker.hear(s, Wanted::Smtp(&[b"235"])).await?;
    }
    Ok(())
}

/// Postfix's command that tells a server the client behind this one.
fn xclient(s: &Session) -> Vec<u8> {
    let mut line = b"XCLIENT ADDR=".to_vec();
    if client_address(s).is_some_and(|address| address.is_ipv6()) {
        line.extend_from_slice(b"IPV6:");
    }
    line.extend_from_slice(s.peer().host().as_bytes());
    if !s.login.is_empty() && !s.conf().proxy.smtp_auth {
        line.extend_from_slice(b" LOGIN=");
        escape(Escape::MailXtext, &s.login, &mut line);
    }
    line.extend_from_slice(b" NAME=");
    line.extend_from_slice(&s.host);
    line.extend_from_slice(b"\r\n");
    line
}

/// Bytes both ways, until one side is done.
async fn converse(s: &mut Session, server: Wire, greeting: Vec<u8>) -> Result<(), SessionEnd> {
    let (handle, timeout) = (s.event_loop.handle.clone(), s.conf().proxy.timeout);
    let metrics = s.event_loop.metrics.clone();
    s.doing = "proxying and sending to client";
    let mut chain = Chain::new();
    let early = greeting.len() as u64;
    chain.push(greeting);
    let sent = s.wire()?.send(&mut chain, Patience::Idle(timeout)).await;
    sent.map_err(|error| s.complain("send()", &error))?;
    // What the client sent behind its log-in is for the server.
    let unread = std::mem::take(&mut s.unread);
    if !unread.is_empty() {
        s.doing = "proxying and sending to upstream";
        chain.push(unread);
        let sent = server.send(&mut chain, Patience::Idle(timeout)).await;
        sent.map_err(|error| s.complain("send()", &error))?;
    }
    s.doing = "proxying";
    let piece = s.conf().proxy.buffer;
    let ways = TunnelOptions {
        timeout,
        piece,
        most: piece.max(tunnel::MOST),
        up_rate: 0,
        down_rate: 0,
        up_patience: None,
        down_patience: None,
        half_close: false,
    };
    let passed = PassedBytes::default();
    let result = tunnel::run(&handle, s.wire()?, &server, ways, &passed, || {}).await;
    metrics.add(Metric::Received, passed.up.get());
    metrics.add(Metric::Sent, early + passed.down_sent.get());
    match result {
        Err(TunnelError { error, .. }) if fault::is_late(&error) => {
            let cause = fault::late();
            s.log(Level::Info, format_args!("client timed out {}", Cause(&cause)));
        }
        Err(TunnelError { end, sending, error }) => {
            let call = failed_call(if sending { "send()" } else { "recv()" }, &error);
            let who = if end == TunnelEnd::Client { "client" } else { "upstream" };
            let what = if sending { "sending to" } else { "reading from" };
            let cause = Cause(&error);
            s.doing = "";
            s.log(
                Level::Info,
                format_args!("{call} failed {cause} while proxying and {what} {who}"),
            );
        }
        Ok(_) => {
            s.doing = "";
            s.log(Level::Info, format_args!("proxied session done"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_before_it_is_judged() {
        let smtp = Wanted::Smtp(&[b"250"]);
        for (wanted, heard, tells) in [
            (Wanted::Pop3, "+OK\r", Heard::Part),
            (Wanted::Pop3, "+OK\r\n", Heard::Good),
            (Wanted::Pop3, "-ERR\r\n", Heard::Bad),
            (smtp, "250-a\r\n", Heard::Part),
            (smtp, "250-a\r\n250 b\r\n", Heard::Good),
            (smtp, "550-a\r\n550 b\r\n", Heard::Bad),
            (Wanted::ImapDone, "* CAPABILITY x\r\n", Heard::Part),
            (Wanted::ImapDone, "* CAPABILITY x\r\n* OK\r\na OK in\r\n", Heard::Good),
            (Wanted::ImapDone, "a NO\r\n", Heard::Bad),
            (Wanted::ImapLiteral, "+ go\r\n", Heard::Good),
        ] {
            assert_eq!(wanted.is_in(heard.as_bytes(), b"a "), tells, "{heard:?}");
        }
    }
}
