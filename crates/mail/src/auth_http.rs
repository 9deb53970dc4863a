//! Asks an HTTP server whether the client may log in, and at which mail server. nginx:
//! ngx_mail_auth_http_module.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use weir_engine::{Chain, ConnectOptions, Patience, Stream};
use weir_log::{Cause, Level};
use weir_proto::uri::{Escape, escape};
use weir_ssl::server::Verify;
use weir_upstream::fault;
use weir_upstream::{Choice, Ended, Failure, PeerTimes};
use weir_values::{Address, Subject, doing};

use crate::protocol::Protocol;
use crate::serve::unreachable;
use crate::session::{LoginMethod, Session, SessionEnd};
use crate::settings::AuthServer;

/// The largest response head.
const MAX_HEAD: usize = 16 * 1024;
/// Bytes of one read.
const PIECE: usize = 1024;
/// How often a response may say `Auth-Status: WAIT`, and the shortest and longest pause until the
/// next request.
const MAX_WAITS: u32 = 100;
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE_SECS: u64 = 60 * 60;

/// The decision about a client.
#[derive(Debug)]
pub enum Verdict {
    /// It may log in at this server.
    Server(MailServer),
    /// It may not log in.
    Refused {
        /// The reply to the client.
        text: Vec<u8>,
        /// The reply is sent after this pause, and the client may try again. `None`: the session
        /// ends.
        pause: Option<Duration>,
    },
}

/// A client's mail server.
#[derive(Debug)]
pub struct MailServer {
    /// Its address.
    pub address: SocketAddr,
    /// The address as the HTTP server wrote it.
    pub name: String,
}

/// The fields of a response.
#[derive(Debug, Default)]
struct AuthAnswer {
    /// An `Auth-Status` that refuses the client.
    refusal: Option<Vec<u8>>,
    /// `Auth-Status: WAIT`
    waits: bool,
    server: Option<Vec<u8>>,
    port: Option<Vec<u8>>,
    user: Option<Vec<u8>>,
    password: Option<Vec<u8>>,
    pause: Option<Duration>,
    error_code: Option<Vec<u8>>,
}

/// Repeats the request until there is a decision.
pub async fn ask(s: &mut Session) -> Result<Verdict, SessionEnd> {
    s.doing = "in http auth state";
    doing::note("the question to auth_http", "", s.server);
    let Some(server) = &s.conf().auth.server else { return Err(SessionEnd::Internal) };
    for _ in 0..MAX_WAITS {
        let request = request(s, server);
        let (answer, name) = exchange(s, server, request).await?;
        if matches!(s.method, LoginMethod::Apop | LoginMethod::CramMd5) {
            // The digest cannot be used as the password at the mail server.
            s.password = None;
        }
        if answer.waits && answer.refusal.is_none() {
            let pause = answer.pause.unwrap_or(MIN_PAUSE).max(MIN_PAUSE);
            s.event_loop.handle.sleep(pause).await;
            continue;
        }
        return verdict(s, answer, &name);
    }
    Err(s.fail(format_args!("auth http server lets the client wait for ever")))
}

/// Makes the request, which has no body.
fn request(s: &mut Session, server: &AuthServer) -> Vec<u8> {
    let mut out = [b"GET ", server.uri.as_slice(), b" HTTP/1.0\r\n"].concat();
    field(&mut out, "Host", &server.host);
    field(&mut out, "Auth-Method", s.method.name().as_bytes());
    field(&mut out, "Auth-User", &escaped(&s.login));
    field(&mut out, "Auth-Pass", &escaped(s.password.as_deref().unwrap_or_default()));
    if matches!(s.method, LoginMethod::Apop | LoginMethod::CramMd5) && !s.salt.is_empty() {
        field(&mut out, "Auth-Salt", &s.salt);
    }
    field(&mut out, "Auth-Protocol", s.protocol().name().as_bytes());
    field(&mut out, "Auth-Login-Attempt", s.attempts.to_string().as_bytes());
    field(&mut out, "Client-IP", s.peer().host().as_bytes());
    field_if(&mut out, "Client-Host", Some(&s.host));
    if let Some(header) = &s.proxy {
        field(&mut out, "Proxy-Protocol-Addr", &header.source);
        field(&mut out, "Proxy-Protocol-Port", header.source_port.to_string().as_bytes());
        field(&mut out, "Proxy-Protocol-Server-Addr", &header.destination);
        let port = header.destination_port.to_string();
        field(&mut out, "Proxy-Protocol-Server-Port", port.as_bytes());
    }
    if s.method == LoginMethod::None {
        field(&mut out, "Auth-SMTP-Helo", &s.hello.helo);
        field(&mut out, "Auth-SMTP-From", &s.hello.from);
        field(&mut out, "Auth-SMTP-To", &s.hello.to);
    }
    if s.is_secured() {
        tls(s, &mut out);
    }
    out.extend_from_slice(&s.conf().auth.headers);
    out.extend_from_slice(b"\r\n");
    out
}

/// Adds fields about the client's TLS, and about its certificate if the server asks for one.
fn tls(s: &mut Session, out: &mut Vec<u8>) {
    out.extend_from_slice(b"Auth-SSL: on\r\n");
    field_if(out, "Auth-SSL-Protocol", s.value("ssl_protocol").as_deref());
    field_if(out, "Auth-SSL-Cipher", s.value("ssl_cipher").as_deref());
    let asked = s.conf().context.as_ref().is_some_and(|own| own.verify != Verify::Off);
    if !asked {
        return;
    }
    let of_certificate = [
        ("Auth-SSL-Verify", "ssl_client_verify"),
        ("Auth-SSL-Subject", "ssl_client_s_dn"),
        ("Auth-SSL-Issuer", "ssl_client_i_dn"),
        ("Auth-SSL-Serial", "ssl_client_serial"),
        ("Auth-SSL-Fingerprint", "ssl_client_fingerprint"),
    ];
    for (name, variable) in of_certificate {
        field_if(out, name, s.value(variable).as_deref());
    }
    if s.conf().auth.pass_client_cert
        && let Some(certificate) = s.value("ssl_client_raw_cert")
    {
        field_if(out, "Auth-SSL-Cert", Some(&escaped(&certificate)));
    }
}

fn escaped(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    escape(Escape::MailAuth, value, &mut out);
    out
}

/// Adds a field. Line ends in its value become spaces.
fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend(value.iter().map(|b| if matches!(b, b'\r' | b'\n' | 0) { b' ' } else { *b }));
    out.extend_from_slice(b"\r\n");
}

/// Adds a field, unless its value is missing or empty.
fn field_if(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        field(out, name, value);
    }
}

/// Sends the request and reads the response. Returns the HTTP server's name too.
async fn exchange(
    s: &mut Session,
    server: &AuthServer,
    request: Vec<u8>,
) -> Result<(AuthAnswer, String), SessionEnd> {
    let site = s.event_loop.site;
    let Some(upstream) = site.upstreams.get(server.group) else { return Err(SessionEnd::Internal) };
    let (group, handle) = (&upstream.group, s.event_loop.handle.clone());
    let until = handle.now() + s.conf().auth.timeout;
    let mut choice = Choice::new(Vec::new());
    for _ in 0..group.tries().max(1) {
        let Some(picked) = group.pick(&mut choice, handle.now()) else { break };
        let name = picked.peer.name.to_string();
        let how = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
        let connected = async { handle.connect(&picked.peer.endpoint.to_any()?, &how).await };
        match connected.await {
            Ok(stream) => {
                group.ended(&picked, Ended::Well(PeerTimes::default()), handle.now());
                let answer = send_request(s, &stream, &name, request, until).await?;
                return Ok((answer, name));
            }
            Err(error) => {
                group.ended(&picked, Ended::by(Failure::Error), handle.now());
                let text = match fault::is_late(&error) {
                    true => timeout_text(&name),
                    false => unreachable(&error),
                };
                s.log(Level::Error, format_args!("{text}"));
            }
        }
    }
    Err(SessionEnd::Internal)
}

fn timeout_text(name: &str) -> String {
    format!("auth http server {name} timed out {}", Cause(&fault::late()))
}

async fn send_request(
    s: &Session,
    stream: &Stream,
    name: &str,
    request: Vec<u8>,
    until: std::time::Instant,
) -> Result<AuthAnswer, SessionEnd> {
    let failed = |call: &str, error: std::io::Error| match fault::is_late(&error) {
        true => s.fail(format_args!("{}", timeout_text(name))),
        false => s.fail(format_args!("{}", fault::failed(call, &error))),
    };
    let mut chain = Chain::new();
    chain.push(request);
    let sent = stream.send(&mut chain, Patience::Until(until)).await;
    sent.map_err(|error| failed("send()", error))?;
    stream.set_deadline(Some(until));
    let mut head = Vec::new();
    loop {
        head.reserve(PIECE);
        let (result, bytes) = stream.recv(head).await;
        head = bytes;
        let received = result.map_err(|error| failed("recv()", error))?;
        match parse(&head) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) if received == 0 => {
                return Err(
                    s.fail(format_args!("auth http server {name} sent an unfinished response"))
                );
            }
            Ok(None) if head.len() > MAX_HEAD => {
                return Err(
                    s.fail(format_args!("auth http server {name} sent a too long response"))
                );
            }
            Ok(None) => {}
            Err(InvalidHeader) => {
                return Err(s.fail(format_args!(
                    "auth http server {name} sent invalid header in response"
                )));
            }
        }
    }
}

/// A line of the response that is no field.
#[derive(Debug, PartialEq, Eq)]
struct InvalidHeader;

/// Parses a response head. `None`: it is incomplete. As in nginx, the status is ignored: the fields
/// decide.
fn parse(head: &[u8]) -> Result<Option<AuthAnswer>, InvalidHeader> {
    let mut answer = AuthAnswer::default();
    let (mut rest, mut first) = (head, true);
    while let Some(end) = rest.iter().position(|b| *b == b'\n') {
        let line = rest.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        rest = rest.get(end + 1..).unwrap_or_default();
        if std::mem::take(&mut first) && line.starts_with(b"HTTP/") {
            continue;
        }
        if line.is_empty() {
            return Ok(Some(answer));
        }
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let named = name.first().is_some_and(u8::is_ascii_alphanumeric)
            && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
        if !named || value.contains(&b'\r') {
            return Err(InvalidHeader);
        }
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        answer.set_field(name, value);
    }
    Ok(None)
}

impl AuthAnswer {
    fn set_field(&mut self, name: &[u8], value: &[u8]) {
        let text = || Some(value.to_vec());
        match name.to_ascii_lowercase().as_slice() {
            b"auth-status" => match value {
                b"OK" => {}
                b"WAIT" => self.waits = true,
                other => self.refusal = Some(other.to_vec()),
            },
            b"auth-server" => self.server = text(),
            b"auth-port" => self.port = text(),
            b"auth-user" => self.user = text(),
            b"auth-pass" => self.password = text(),
            b"auth-error-code" => self.error_code = text(),
            b"auth-wait" => {
                let seconds = weir_conf::values::number(value).filter(|seconds| *seconds > 0);
                let pause = |seconds: u64| Duration::from_secs(seconds.min(MAX_PAUSE_SECS));
                self.pause = seconds.map(pause);
            }
            _ => {}
        }
    }
}

fn verdict(s: &mut Session, answer: AuthAnswer, name: &str) -> Result<Verdict, SessionEnd> {
    if let Some(user) = answer.user {
        s.login = user;
    }
    if let Some(password) = answer.password {
        s.password = Some(password);
    }
    if let Some(message) = answer.refusal {
        let shown = String::from_utf8_lossy(&message);
        s.log(Level::Info, format_args!("client login failed: \"{shown}\""));
        let text = match s.protocol() {
            Protocol::Pop3 => [b"-ERR ", message.as_slice(), b"\r\n"].concat(),
            Protocol::Imap => [&s.tag, b"NO ".as_slice(), &message, b"\r\n"].concat(),
            Protocol::Smtp => {
                let code = answer.error_code.unwrap_or_else(|| b"535 5.7.0".to_vec());
                [&code, b" ".as_slice(), &message, b"\r\n"].concat()
            }
        };
        return Ok(Verdict::Refused { text, pause: answer.pause });
    }
    let (Some(server), Some(port)) = (answer.server, answer.port) else {
        return Err(s.fail(format_args!("auth http server {name} did not send server or port")));
    };
    if s.password.is_none() && s.protocol() != Protocol::Smtp {
        return Err(s.fail(format_args!("auth http server {name} did not send password")));
    }
    let (server, port) = (String::from_utf8_lossy(&server), String::from_utf8_lossy(&port));
    let Ok(ip) = server.parse::<IpAddr>() else {
        return Err(s.fail(format_args!(
            "auth http server {name} sent invalid server address:\"{server}\""
        )));
    };
    let number = port.parse::<u16>().ok().filter(|number| *number > 0);
    let Some(number) = number else {
        return Err(
            s.fail(format_args!("auth http server {name} sent invalid server port:\"{port}\""))
        );
    };
    let name = format!("{server}:{port}");
    Ok(Verdict::Server(MailServer { address: (ip, number).into(), name }))
}

/// The client's IP address and port.
pub fn client_address(s: &Session) -> Option<SocketAddr> {
    match s.peer() {
        Address::Inet(inet) => Some(*inet),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_count_and_the_status_does_not() {
        let head =
            b"HTTP/1.0 500 x\r\nAuth-Status: OK\r\nauth-server: 127.0.0.1 \nAuth-Wait: 3\r\n\r\nx";
        let answer = parse(head).unwrap().unwrap();
        assert_eq!(answer.server.as_deref(), Some(b"127.0.0.1".as_slice()));
        assert_eq!((answer.refusal, answer.pause), (None, Some(Duration::from_secs(3))));
        // The status line may be missing.
        let answer = parse(b"Auth-Status: No such user\n\n").unwrap().unwrap();
        assert_eq!(answer.refusal.as_deref(), Some(b"No such user".as_slice()));
        assert!(parse(b"HTTP/1.0 200 OK\r\nA: b\r\n").unwrap().is_none());
        assert_eq!(parse(b"Auth Status: OK\r\n\r\n").unwrap_err(), InvalidHeader);
        assert_eq!(parse(b"-a: b\r\n\r\n").unwrap_err(), InvalidHeader);
    }

    #[test]
    fn no_value_makes_a_second_line() {
        let mut out = Vec::new();
        field(&mut out, "A", b"b\r\nAuth-Status: OK");
        assert_eq!(out, b"A: b  Auth-Status: OK\r\n");
    }
}
