//! The settings of mail servers.

use std::sync::Arc;
use std::time::Duration;

use weir_log::Log;
use weir_resolver::ResolverConf;
use weir_ssl::server::{self, ServerContext};
use weir_upstream::config::GroupId;
use weir_values::Cidr;

use crate::protocol::Protocol;

/// The default size of buffers. nginx uses the page size, `ngx_pagesize`.
const PAGE: usize = 4096;

/// Settings of a block. An inner block starts with a clone of the outer ones.
#[derive(Debug, Clone)]
pub struct MailConf {
    /// `error_log`
    pub error_log: Arc<Log>,
    /// `protocol`
    pub protocol: Option<Protocol>,
    /// `timeout`
    pub timeout: Duration,
    /// `server_name`. Empty: the machine's host name.
    pub server_name: Vec<u8>,
    /// `resolver`
    pub resolver: Option<Arc<ResolverConf>>,
    /// `resolver_timeout`
    pub resolver_timeout: Duration,
    /// `max_errors`
    pub max_errors: u64,
    /// `auth_http...`
    pub auth: AuthConf,
    /// `proxy_...`, `xclient`
    pub proxy: ProxyConf,
    /// `set_real_ip_from`
    pub believed: Vec<Cidr>,
    /// `imap_...`
    pub imap: ProtocolConf,
    /// `pop3_...`
    pub pop3: ProtocolConf,
    /// `smtp_...`
    pub smtp: ProtocolConf,
    /// `smtp_greeting_delay`
    pub greeting_delay: Duration,
    /// `ssl_...`
    pub tls: server::Conf,
    /// The context that these settings make.
    pub context: Option<Arc<ServerContext>>,
    /// `starttls`
    pub starttls: StartTls,
}

/// `auth_http...`
#[derive(Debug, Clone)]
pub struct AuthConf {
    /// `auth_http`
    pub server: Option<AuthServer>,
    /// `auth_http_timeout`
    pub timeout: Duration,
    /// `auth_http_header`, as complete header lines.
    pub headers: Vec<u8>,
    /// `auth_http_pass_client_cert`
    pub pass_client_cert: bool,
}

/// The HTTP server of `auth_http`.
#[derive(Debug, Clone)]
pub struct AuthServer {
    /// Its addresses.
    pub group: GroupId,
    /// `Host`
    pub host: Vec<u8>,
    /// The request target.
    pub uri: Vec<u8>,
}

/// `proxy_...`, `xclient`
#[derive(Debug, Clone)]
pub struct ProxyConf {
    /// `proxy_buffer`: the longest reply of the mail server during the log-in.
    pub buffer: usize,
    /// `proxy_timeout`
    pub timeout: Duration,
    /// `proxy_pass_error_message`
    pub pass_error_message: bool,
    /// `xclient`
    pub xclient: bool,
    /// `proxy_smtp_auth`
    pub smtp_auth: bool,
    /// The version of the PROXY header for mail servers: 1, or 2. `None`: no header.
    pub proxy_protocol: Option<u8>,
}

/// Settings of one protocol.
#[derive(Debug, Clone)]
pub struct ProtocolConf {
    /// `..._client_buffer`: the longest command.
    pub buffer: usize,
    /// `..._capabilities`: the capabilities to announce.
    pub capabilities: Vec<Vec<u8>>,
    /// `..._auth`
    pub methods: Methods,
}

/// The ways to authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Methods {
    /// PLAIN
    pub plain: bool,
    /// LOGIN
    pub login: bool,
    /// APOP, of POP3.
    pub apop: bool,
    /// CRAM-MD5
    pub cram_md5: bool,
    /// EXTERNAL
    pub external: bool,
    /// `none`: no authentication, for SMTP.
    pub none: bool,
}

impl Methods {
    /// The SASL names of the announced mechanisms.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let named = [
            (self.plain, "PLAIN"),
            (self.login, "LOGIN"),
            (self.cram_md5, "CRAM-MD5"),
            (self.external, "EXTERNAL"),
        ];
        named.into_iter().filter(|(is_there, _)| *is_there).map(|(_, name)| name)
    }
}

/// `starttls`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartTls {
    /// A connection without TLS cannot start it.
    #[default]
    Off,
    /// A client may start TLS.
    On,
    /// A client must start TLS before it logs in.
    Only,
}

impl ProtocolConf {
    fn new(buffer: usize, capabilities: &[&str], methods: Methods) -> ProtocolConf {
        let capabilities = capabilities.iter().map(|word| word.as_bytes().to_vec()).collect();
        ProtocolConf { buffer, capabilities, methods }
    }
}

impl MailConf {
    pub(crate) fn new(error_log: Arc<Log>) -> MailConf {
        /// A POP3 command has 255 bytes at most (RFC 2449, section 4), a SASL response a little
        /// more.
        const POP3_LINE: usize = 512;
        let plain = Methods { plain: true, ..Methods::default() };
        let login = Methods { login: true, ..plain };
        MailConf {
            error_log,
            protocol: None,
            timeout: Duration::from_secs(60),
            server_name: Vec::new(),
            resolver: None,
            resolver_timeout: Duration::from_secs(30),
            max_errors: 5,
            auth: AuthConf {
                server: None,
                timeout: Duration::from_secs(60),
                headers: Vec::new(),
                pass_client_cert: false,
            },
            proxy: ProxyConf {
                buffer: PAGE,
                timeout: Duration::from_secs(24 * 60 * 60),
                pass_error_message: false,
                xclient: true,
                smtp_auth: false,
                proxy_protocol: None,
            },
            believed: Vec::new(),
            imap: ProtocolConf::new(PAGE, &["IMAP4", "IMAP4rev1", "UIDPLUS"], plain),
            pop3: ProtocolConf::new(POP3_LINE, &["TOP", "USER", "UIDL"], plain),
            smtp: ProtocolConf::new(PAGE, &[], login),
            greeting_delay: Duration::ZERO,
            tls: server::Conf::default(),
            context: None,
            starttls: StartTls::Off,
        }
    }
}
