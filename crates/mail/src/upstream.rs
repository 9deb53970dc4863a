//! Logs the client in at its mail server, and relays both ways. nginx: ngx_mail_proxy_module.

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

/// The reply to an SMTP client after its log-in.
const SMTP_DONE: &[u8] = b"235 2.0.0 OK\r\n";

/// Connects to the mail server, logs in, and relays.
pub async fn pass(
    s: &mut Session,
    presence: &Presence,
    server: MailServer,
) -> Result<(), SessionEnd> {
    s.doing = "connecting to upstream";
    doing::note("the log-in at the server", "", s.server);
    s.upstream = Some(server.name);
    check_credentials(s)?;
    let handle = s.event_loop.handle.clone();
    let until = handle.now() + s.conf().timeout;
    let how = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
    let connected = handle.connect(&server.address.into(), &how).await;
    let stream = connected.map_err(|error| not_connected(s, &error))?;
    let _ = stream.nodelay(true);
    let mut upstream = UpstreamLogin { stream: &stream, until, reply: Vec::new() };
    send_proxy_header(s, &mut upstream).await?;
    match s.protocol() {
        Protocol::Pop3 => log_in_pop3(s, &mut upstream).await?,
        Protocol::Imap => log_in_imap(s, &mut upstream).await?,
        Protocol::Smtp => log_in_smtp(s, &mut upstream).await?,
    }
    let greeting = match s.protocol() {
        Protocol::Smtp if s.method != LoginMethod::None => SMTP_DONE.to_vec(),
        _ => std::mem::take(&mut upstream.reply),
    };
    stream.set_deadline(None);
    s.doing = "";
    s.log(Level::Info, format_args!("client logged in"));
    presence.quiet();
    relay(s, Wire::join(stream, None), greeting).await
}

fn not_connected(s: &Session, error: &std::io::Error) -> SessionEnd {
    // nginx logs a time-out at this level.
    let level = if fault::is_late(error) { Level::Info } else { Level::Error };
    s.log(level, format_args!("{}", unreachable(error)));
    SessionEnd::Internal
}

/// Refuses a name or password that the mail server would read as several lines or words.
fn check_credentials(s: &Session) -> Result<(), SessionEnd> {
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

/// The connection to a mail server during the log-in.
struct UpstreamLogin<'a> {
    stream: &'a Stream,
    until: Instant,
    /// The last reply.
    reply: Vec<u8>,
}

impl UpstreamLogin<'_> {
    async fn send(&mut self, s: &Session, line: Vec<u8>) -> Result<(), SessionEnd> {
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

    /// Reads a reply, and fails unless it is as expected.
    async fn expect(&mut self, s: &mut Session, expected: ExpectedReply) -> Result<(), SessionEnd> {
        s.doing = "reading response from upstream";
        let most = s.conf().proxy.buffer;
        self.reply.clear();
        self.stream.set_deadline(Some(self.until));
        loop {
            self.reply.reserve_exact(most.saturating_sub(self.reply.len()).max(1));
            let (result, bytes) = self.stream.recv(std::mem::take(&mut self.reply)).await;
            self.reply = bytes;
            match result {
                Ok(0) => {
                    return Err(s.fail(format_args!("upstream prematurely closed connection")));
                }
                Ok(_) => {}
                Err(error) => return Err(self.failed(s, "recv()", &error)),
            }
            match expected.check(&self.reply, &s.tag) {
                ReplyCheck::Expected => return Ok(()),
                ReplyCheck::Unexpected => return Err(self.refused(s)),
                ReplyCheck::Incomplete if self.reply.len() >= most => {
                    let text = String::from_utf8_lossy(&self.reply);
                    return Err(
                        s.fail(format_args!("upstream sent too long response line: \"{text}\""))
                    );
                }
                ReplyCheck::Incomplete => {}
            }
        }
    }

    /// The mail server refused: logs its reply, and passes it to the client with
    /// `proxy_pass_error_message`.
    fn refused(&mut self, s: &Session) -> SessionEnd {
        let line = String::from_utf8_lossy(self.reply.trim_ascii_end());
        if !s.conf().proxy.pass_error_message {
            return s.fail(format_args!("upstream sent invalid response: \"{line}\""));
        }
        s.log(Level::Info, format_args!("upstream sent invalid response: \"{line}\""));
        SessionEnd::Reply(std::mem::take(&mut self.reply))
    }
}

/// The expected reply.
#[derive(Debug, Clone, Copy)]
enum ExpectedReply {
    /// POP3: `+OK`.
    Pop3,
    /// IMAP: the greeting.
    ImapGreeting,
    /// IMAP: permission to send a literal.
    ImapLiteral,
    /// IMAP: the tagged OK.
    ImapDone,
    /// SMTP: one of these codes. Empty: any code.
    Smtp(&'static [&'static [u8; 3]]),
}

/// The verdict about a reply.
#[derive(Debug, PartialEq, Eq)]
enum ReplyCheck {
    Incomplete,
    Expected,
    Unexpected,
}

impl ExpectedReply {
    fn check(self, reply: &[u8], tag: &[u8]) -> ReplyCheck {
        let judge = |good: bool| if good { ReplyCheck::Expected } else { ReplyCheck::Unexpected };
        if reply.len() < 4 || !reply.ends_with(b"\r\n") {
            return ReplyCheck::Incomplete;
        }
        match self {
            ExpectedReply::Pop3 => judge(reply.starts_with(b"+OK")),
            ExpectedReply::ImapGreeting => judge(reply.starts_with(b"* OK")),
            ExpectedReply::ImapLiteral => judge(reply.starts_with(b"+")),
            ExpectedReply::ImapDone => {
                // Some servers send their capabilities first.
                let mut lines = reply.split_inclusive(|b| *b == b'\n');
                match lines.find(|line| !line.starts_with(b"* ")) {
                    None => ReplyCheck::Incomplete,
                    Some(line) => {
                        judge(line.strip_prefix(tag).is_some_and(|rest| rest.starts_with(b"OK")))
                    }
                }
            }
            ExpectedReply::Smtp(codes) => {
                let last = reply.split_inclusive(|b| *b == b'\n').next_back().unwrap_or_default();
                // In the last line of a reply, no hyphen follows the code.
                if last.get(3) == Some(&b'-') {
                    return ReplyCheck::Incomplete;
                }
                judge(codes.is_empty() || codes.iter().any(|code| reply.starts_with(*code)))
            }
        }
    }
}

/// Sends the PROXY header with the client's address.
async fn send_proxy_header(
    s: &mut Session,
    upstream: &mut UpstreamLogin<'_>,
) -> Result<(), SessionEnd> {
    let Some(version) = s.conf().proxy.proxy_protocol else { return Ok(()) };
    s.doing = "sending PROXY protocol header to upstream";
    let ends = match (client_address(s), s.local()) {
        (Some(from), Address::Inet(to)) => Some((from, *to)),
        _ => None,
    };
    let mut head = Vec::new();
    proxy_protocol::write(version, ends, false, &Extras::default(), &mut head);
    upstream.send(s, head).await
}

async fn log_in_pop3(s: &mut Session, upstream: &mut UpstreamLogin<'_>) -> Result<(), SessionEnd> {
    upstream.expect(s, ExpectedReply::Pop3).await?;
    s.doing = "sending user name to upstream";
    upstream.send(s, [b"USER ", s.login.as_slice(), b"\r\n"].concat()).await?;
    upstream.expect(s, ExpectedReply::Pop3).await?;
    s.doing = "sending password to upstream";
    let password = s.password.as_deref().unwrap_or_default();
    upstream.send(s, [b"PASS ", password, b"\r\n"].concat()).await?;
    upstream.expect(s, ExpectedReply::Pop3).await
}

async fn log_in_imap(s: &mut Session, upstream: &mut UpstreamLogin<'_>) -> Result<(), SessionEnd> {
    let literal = |bytes: &[u8]| format!("{{{}}}\r\n", bytes.len()).into_bytes();
    upstream.expect(s, ExpectedReply::ImapGreeting).await?;
    s.doing = "sending LOGIN command to upstream";
    upstream.send(s, [s.tag.as_slice(), b"LOGIN ", &literal(&s.login)].concat()).await?;
    upstream.expect(s, ExpectedReply::ImapLiteral).await?;
    s.doing = "sending user name to upstream";
    let password = s.password.as_deref().unwrap_or_default();
    upstream.send(s, [s.login.as_slice(), b" ", &literal(password)].concat()).await?;
    upstream.expect(s, ExpectedReply::ImapLiteral).await?;
    s.doing = "sending password to upstream";
    let password = s.password.as_deref().unwrap_or_default();
    upstream.send(s, [password, b"\r\n"].concat()).await?;
    upstream.expect(s, ExpectedReply::ImapDone).await
}

async fn log_in_smtp(s: &mut Session, upstream: &mut UpstreamLogin<'_>) -> Result<(), SessionEnd> {
    const DONE: ExpectedReply = ExpectedReply::Smtp(&[b"250"]);
    let proxy = &s.conf().proxy;
    upstream.expect(s, ExpectedReply::Smtp(&[b"220"])).await?;
    s.doing = "sending HELO/EHLO to upstream";
    let verb: &[u8] = if s.hello.esmtp || proxy.xclient { b"EHLO " } else { b"HELO " };
    upstream.send(s, [verb, &s.conf().server_name, b"\r\n"].concat()).await?;
    upstream.expect(s, DONE).await?;
    if proxy.xclient {
        s.doing = "sending XCLIENT to upstream";
        let line = xclient(s);
        upstream.send(s, line).await?;
        upstream.expect(s, ExpectedReply::Smtp(&[b"220", b"250"])).await?;
        if !s.hello.helo.is_empty() {
            s.doing = "sending client HELO/EHLO to upstream";
            let verb: &[u8] = if s.hello.esmtp { b"EHLO " } else { b"HELO " };
            upstream.send(s, [verb, &s.hello.helo, b"\r\n"].concat()).await?;
            upstream.expect(s, DONE).await?;
        }
    }
    if s.method == LoginMethod::None {
        s.doing = "sending MAIL FROM to upstream";
        upstream.send(s, [s.hello.from.as_slice(), b"\r\n"].concat()).await?;
        upstream.expect(s, DONE).await?;
        s.doing = "sending RCPT TO to upstream";
        upstream.send(s, [s.hello.to.as_slice(), b"\r\n"].concat()).await?;
        // Any reply goes on to the client: it is the one to its `RCPT TO`.
        upstream.expect(s, ExpectedReply::Smtp(&[])).await?;
    } else if proxy.smtp_auth {
        s.doing = "sending AUTH to upstream";
        let Some(password) = &s.password else {
            return Err(s.fail(format_args!("no password available")));
        };
        let mut line = b"AUTH PLAIN ".to_vec();
        let both = [b"\0".as_slice(), &s.login, b"\0", password].concat();
        base64::encode(Alphabet::Plain, &both, &mut line);
        line.extend_from_slice(b"\r\n");
        upstream.send(s, line).await?;
        upstream.expect(s, ExpectedReply::Smtp(&[b"235"])).await?;
    }
    Ok(())
}

/// Postfix's command for the client's address and name.
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

/// Sends the reply to the client, and relays bytes both ways until one side is done.
async fn relay(s: &mut Session, server: Wire, greeting: Vec<u8>) -> Result<(), SessionEnd> {
    let (handle, timeout) = (s.event_loop.handle.clone(), s.conf().proxy.timeout);
    let metrics = s.event_loop.metrics.clone();
    s.doing = "proxying and sending to client";
    let mut chain = Chain::new();
    let early = greeting.len() as u64;
    chain.push(greeting);
    let sent = s.wire()?.send(&mut chain, Patience::Idle(timeout)).await;
    sent.map_err(|error| s.log_client_error("send()", &error))?;
    // What the client sent after its credentials is for the mail server.
    let unread = std::mem::take(&mut s.unread);
    if !unread.is_empty() {
        s.doing = "proxying and sending to upstream";
        chain.push(unread);
        let sent = server.send(&mut chain, Patience::Idle(timeout)).await;
        sent.map_err(|error| s.log_client_error("send()", &error))?;
    }
    s.doing = "proxying";
    let piece = s.conf().proxy.buffer;
    let options = TunnelOptions {
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
    let result = tunnel::run(&handle, s.wire()?, &server, options, &passed, || {}).await;
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
        let smtp = ExpectedReply::Smtp(&[b"250"]);
        for (expected, reply, tells) in [
            (ExpectedReply::Pop3, "+OK\r", ReplyCheck::Incomplete),
            (ExpectedReply::Pop3, "+OK\r\n", ReplyCheck::Expected),
            (ExpectedReply::Pop3, "-ERR\r\n", ReplyCheck::Unexpected),
            (smtp, "250-a\r\n", ReplyCheck::Incomplete),
            (smtp, "250-a\r\n250 b\r\n", ReplyCheck::Expected),
            (smtp, "550-a\r\n550 b\r\n", ReplyCheck::Unexpected),
            (ExpectedReply::ImapDone, "* CAPABILITY x\r\n", ReplyCheck::Incomplete),
            (
                ExpectedReply::ImapDone,
                "* CAPABILITY x\r\n* OK\r\na OK in\r\n",
                ReplyCheck::Expected,
            ),
            (ExpectedReply::ImapDone, "a NO\r\n", ReplyCheck::Unexpected),
            (ExpectedReply::ImapLiteral, "+ go\r\n", ReplyCheck::Expected),
        ] {
            assert_eq!(expected.check(reply.as_bytes(), b"a "), tells, "{reply:?}");
        }
    }
}
