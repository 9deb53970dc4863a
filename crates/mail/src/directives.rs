//! The directives of `mail` that weir implements. Tables in `weir-conf` have their contexts and
//! argument counts.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error};
use weir_resolver::ResolverConf;
use weir_ssl::server::{self, rows};
use weir_ssl::{DirectiveUse, SslDirective};
use weir_values::access;

use crate::config::{self, MailScope};
use crate::protocol::Protocol;
use crate::session::Session;
use crate::settings::{MailConf, Methods, ProtocolConf, StartTls};

type SetDirective = fn(&mut MailScope<'_, '_>, &Line) -> Result<(), Error>;

/// A directive of the `mail` family.
#[derive(Debug, Clone, Copy)]
pub struct MailDirective {
    /// Its name in a configuration.
    pub name: &'static str,
    /// One sentence for docs/directives.md.
    pub help: &'static str,
    /// Reads a line of it. `None` for blocks, which are read elsewhere.
    pub(crate) set: Option<SetDirective>,
}

/// The directive with this name, if weir implements it in `mail`.
pub fn directive(name: &str) -> Option<&'static MailDirective> {
    TABLE.iter().chain(&TLS).find(|d| d.name == name)
}

const ROWS: &[SslDirective<Session, server::Conf>] = rows();

/// `ssl_...` directives that `http` has too. The tables of `weir-conf` know which of them `mail`
/// has.
static TLS: [MailDirective; ROWS.len()] = {
    let mut all = [MailDirective { name: "", help: "", set: Some(tls) }; ROWS.len()];
    let mut i = 0;
    while i < all.len() {
        (all[i].name, all[i].help) = (ROWS[i].name, ROWS[i].help);
        i += 1;
    }
    all
};

fn tls(s: &mut MailScope<'_, '_>, d: &Line) -> Result<(), Error> {
    let used = DirectiveUse { line: d, first: s.first(d) };
    SslDirective::read(ROWS, &mut s.conf.tls, used, &mut s.setup.tls())
}

const fn line(name: &'static str, help: &'static str, set: SetDirective) -> MailDirective {
    MailDirective { name, help, set: Some(set) }
}

/// A directive that may appear once in a block and sets one field.
macro_rules! once {
    ($name:literal, $($field:ident).+, $read:expr, $help:literal) => {
        line($name, $help, |s, d| {
            s.once(d)?;
            let read: fn(&Line) -> Result<_, Error> = $read;
            s.conf.$($field).+ = read(d)?;
            Ok(())
        })
    };
}

static TABLE: &[MailDirective] = &[
    MailDirective {
        name: "server",
        help: "A server for the clients of some addresses.",
        set: None,
    },
    line("listen", "An address that clients come to.", config::listen),
    line("protocol", "What is spoken: `imap`, `pop3` or `smtp`.", |s, d| {
        let Some(word) = d.arg(0) else { return Ok(()) };
        let known = Protocol::ALL.into_iter().find(|protocol| word.is(protocol.name()));
        let unknown = || d.error_at(word, format!("unknown protocol \"{}\"", word.lossy()));
        s.conf.protocol = Some(known.ok_or_else(unknown)?);
        Ok(())
    }),
    once!(
        "timeout",
        timeout,
        Line::duration,
        "How long a client may take until it has given its credentials, and a server until it has logged it in."
    ),
    line("server_name", "The server's name in greetings; the machine's otherwise.", |s, d| {
        s.once(d)?;
        s.conf.server_name = d.arg(0).map(|word| word.bytes.clone()).unwrap_or_default();
        Ok(())
    }),
    line("error_log", "Where errors of sessions are logged.", |s, d| {
        let first = s.first(d);
        s.conf.error_log = s.setup.inputs.error_log(d, first, &s.conf.error_log)?;
        Ok(())
    }),
    line("resolver", "Name servers for the names of SMTP's clients.", |s, d| {
        s.once(d)?;
        s.conf.resolver = match d.args.first() {
            Some(word) if word.is("off") => None,
            _ => Some(Arc::new(ResolverConf::read(d)?)),
        };
        Ok(())
    }),
    once!(
        "resolver_timeout",
        resolver_timeout,
        Line::duration,
        "How long a name server is waited for."
    ),
    once!(
        "max_errors",
        max_errors,
        Line::number,
        "After so many lines that are no commands a client is sent away."
    ),
    line("auth_http", "The server of HTTP that says where a client leads.", config::auth_http),
    once!(
        "auth_http_timeout",
        auth.timeout,
        Line::duration,
        "How long the server of `auth_http` may take."
    ),
    line("auth_http_header", "A field that the server of `auth_http` is sent.", |s, d| {
        let first = s.first(d);
        let headers = &mut s.conf.auth.headers;
        if first {
            headers.clear();
        }
        let [name, value] = d.args.as_slice() else { return Ok(()) };
        headers.extend([&name.bytes, b": ".as_slice(), &value.bytes, b"\r\n"].concat());
        Ok(())
    }),
    once!(
        "auth_http_pass_client_cert",
        auth.pass_client_cert,
        Line::flag,
        "Whether the server of `auth_http` is sent the client's certificate."
    ),
    line("proxy", "Accepted: clients are always passed on, as by nginx.", |s, d| {
        s.once(d)?;
        d.flag().map(drop)
    }),
    line("proxy_buffer", "The longest answer of a server to a log-in.", |s, d| {
        s.once(d)?;
        s.conf.proxy.buffer = size(d)?;
        Ok(())
    }),
    once!("proxy_timeout", proxy.timeout, Line::duration, "How long both sides may be silent."),
    once!(
        "proxy_pass_error_message",
        proxy.pass_error_message,
        Line::flag,
        "Whether a client is told why a server does not log it in."
    ),
    once!("xclient", proxy.xclient, Line::flag, "Whether servers of SMTP are told the client."),
    once!(
        "proxy_smtp_auth",
        proxy.smtp_auth,
        Line::flag,
        "Whether weir logs clients in at servers of SMTP."
    ),
    once!(
        "proxy_protocol",
        proxy.proxy_protocol,
        |d| d.choice(&[("on", Some(1)), ("off", None), ("v2", Some(2))]),
        "Whether the PROXY protocol names the client to servers."
    ),
    line("set_real_ip_from", "Addresses of trusted proxies.", |s, d| {
        let first = s.first(d);
        access::read_trusted(&mut s.conf.believed, d, first, &mut s.setup.warnings)
    }),
    line("imap_client_buffer", "The longest command of IMAP.", |s, d| {
        buffer(s, d, |conf| &mut conf.imap)
    }),
    line("smtp_client_buffer", "The longest command of SMTP.", |s, d| {
        buffer(s, d, |conf| &mut conf.smtp)
    }),
    once!(
        "smtp_greeting_delay",
        greeting_delay,
        Line::duration,
        "How long a client waits for the greeting; one that speaks before is sent away."
    ),
    line("imap_capabilities", "What clients of IMAP are told that servers can do.", |s, d| {
        capabilities(s, d, |conf| &mut conf.imap)
    }),
    line("pop3_capabilities", "What clients of POP3 are told that servers can do.", |s, d| {
        capabilities(s, d, |conf| &mut conf.pop3)
    }),
    line("smtp_capabilities", "What clients of SMTP are told that servers can do.", |s, d| {
        capabilities(s, d, |conf| &mut conf.smtp)
    }),
    line("imap_auth", "How clients of IMAP may log in.", |s, d| {
        methods(s, d, |conf| &mut conf.imap)
    }),
    line("pop3_auth", "How clients of POP3 may log in.", |s, d| {
        methods(s, d, |conf| &mut conf.pop3)
    }),
    line("smtp_auth", "How clients of SMTP may log in; `none`: they need not.", |s, d| {
        methods(s, d, |conf| &mut conf.smtp)
    }),
    line("starttls", "Whether a client may, or must, begin TLS by a command.", |s, d| {
        let choices = [("off", StartTls::Off), ("on", StartTls::On), ("only", StartTls::Only)];
        s.once(d)?;
        s.conf.starttls = d.choice(&choices)?;
        Ok(())
    }),
];

type Part = fn(&mut MailConf) -> &mut ProtocolConf;

fn size(d: &Line) -> Result<usize, Error> {
    d.size().map(|n| usize::try_from(n).unwrap_or(usize::MAX).max(1))
}

fn buffer(s: &mut MailScope<'_, '_>, d: &Line, part: Part) -> Result<(), Error> {
    s.once(d)?;
    part(&mut s.conf).buffer = size(d)?;
    Ok(())
}

fn capabilities(s: &mut MailScope<'_, '_>, d: &Line, part: Part) -> Result<(), Error> {
    let first = s.first(d);
    let list = &mut part(&mut s.conf).capabilities;
    if first {
        list.clear();
    }
    list.extend(d.args.iter().map(|word| word.bytes.clone()));
    Ok(())
}

fn methods(s: &mut MailScope<'_, '_>, d: &Line, part: Part) -> Result<(), Error> {
    let first = s.first(d);
    let methods = &mut part(&mut s.conf).methods;
    if first {
        *methods = Methods::default();
    }
    for word in &d.args {
        match word.bytes.as_slice() {
            b"plain" => methods.plain = true,
            b"login" => methods.login = true,
            b"apop" => methods.apop = true,
            b"cram-md5" => methods.cram_md5 = true,
            b"external" => methods.external = true,
            b"none" => methods.none = true,
            _ => {}
        }
    }
    Ok(())
}
