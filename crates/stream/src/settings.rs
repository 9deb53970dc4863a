//! The settings of sessions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::ConnectOptions;
use weir_log::{Level, Log};
use weir_ssl::client;
use weir_ssl::server::{self, ServerContext};
use weir_upstream::config::{Bind, GroupExtras, GroupId, Host, Upstreams, Url};
use weir_upstream::tunnel;
use weir_values::access::Rules;
use weir_values::doing::THRESHOLD;
use weir_values::limit_conn::{LimitLogging, Limits};
use weir_values::log;
use weir_values::status::StatusZone;
use weir_values::{Address, Cidr, Template, VariableId};

/// The upstream groups of `stream`. Unlike those of `http`, they have no sticky sessions.
pub type Groups = Upstreams<GroupScript>;

/// Settings that only groups of `stream` have.
#[derive(Debug, Default)]
pub struct GroupScript {
    /// Whether `balancer_by_lua` chooses the servers.
    pub chooses: bool,
}

impl GroupExtras for GroupScript {
    const BLOCK: &'static str = "stream";

    fn chooses(&self) -> bool {
        self.chooses
    }
}

/// Settings of a block. An inner block starts with a clone of the outer ones.
#[derive(Debug, Clone)]
pub struct StreamConf {
    /// `error_log`
    pub error_log: Arc<Log>,
    /// `resolver`
    pub resolver: Option<Arc<weir_resolver::ResolverConf>>,
    /// `resolver_timeout`
    pub resolver_timeout: Duration,
    /// `proxy_protocol_timeout`
    pub proxy_protocol_timeout: Duration,
    /// `preread_timeout`
    pub preread_timeout: Duration,
    /// `preread_buffer_size`
    pub preread_buffer: usize,
    /// `blocked_threshold`
    pub threshold: Duration,
    /// `tcp_nodelay`
    pub tcp_nodelay: bool,
    /// `ssl_preread`
    pub ssl_preread: bool,
    /// `set_real_ip_from`
    pub believed: Vec<Cidr>,
    /// `allow`, `deny`
    pub access: Rules,
    /// `limit_conn`
    pub limits: Limits,
    /// `limit_conn_log_level`, `limit_conn_dry_run`
    pub refusal: LimitLogging,
    /// `access_log`
    pub log: log::Conf,
    /// `proxy_...`
    pub proxy: Proxy,
    /// `status_zone`
    pub status_zone: Option<Arc<StatusZone>>,
    /// `health_check_timeout`
    pub health_timeout: Duration,
    /// `ssl_...`, `proxy_ssl_...`
    pub tls: TlsConf,
    /// `set`, in order.
    pub sets: Vec<(VariableId, Template)>,
    /// Which phases have scripts.
    pub scripts: PhaseScripts,
    /// The content handler of sessions.
    pub content: SessionContent,
}

/// Which phases of a server's sessions have a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct PhaseScripts {
    /// `ssl_client_hello_by_lua`
    pub hello: bool,
    /// `ssl_certificate_by_lua`
    pub certificate: bool,
    /// `preread_by_lua`
    pub preread: bool,
    /// `preread_by_lua_no_postpone`
    pub early: bool,
    /// `log_by_lua`
    pub log: bool,
}

/// What a server does with its sessions.
#[derive(Debug, Clone)]
pub enum SessionContent {
    /// No content directive: sessions end with status 500.
    None,
    /// `return`
    Return(Template),
    /// `proxy_pass` without variables.
    Group(GroupId),
    /// `proxy_pass` with variables.
    Computed(Template),
    /// `pass` without variables.
    Pass(Address),
    /// `pass` with variables.
    PassTo(Template),
    /// `content_by_lua`
    Script,
}

impl SessionContent {
    /// Whether it is `proxy_pass`.
    pub fn is_proxied(&self) -> bool {
        matches!(self, SessionContent::Group(_) | SessionContent::Computed(_))
    }
}

/// `proxy_...`
#[derive(Debug, Clone)]
pub struct Proxy {
    /// `proxy_connect_timeout`
    pub connect_timeout: Duration,
    /// `proxy_timeout`
    pub timeout: Duration,
    /// `proxy_buffer_size`
    pub buffer: usize,
    /// How far the buffer of a relay may grow. A `proxy_buffer_size` in the configuration is the
    /// limit.
    pub most: usize,
    /// `proxy_upload_rate`
    pub upload_rate: Option<Template>,
    /// `proxy_download_rate`
    pub download_rate: Option<Template>,
    /// `proxy_next_upstream`
    pub next: bool,
    /// `proxy_next_upstream_tries`
    pub tries: u32,
    /// `proxy_next_upstream_timeout`
    pub next_timeout: Duration,
    /// The version of the PROXY header for servers: 1, or 2. `None`: no header.
    pub proxy_protocol: Option<u8>,
    /// `proxy_half_close`
    pub half_close: bool,
    /// `proxy_requests`; 0: any number.
    pub requests: u64,
    /// `proxy_responses`: answers to each datagram.
    pub responses: Option<u64>,
    /// `proxy_bind`
    pub bind: Option<Bind>,
    /// `proxy_socket_keepalive`
    pub keepalive: bool,
    /// `proxy_socket_rcvbuf`
    pub rcvbuf: Option<usize>,
    /// `proxy_socket_sndbuf`
    pub sndbuf: Option<usize>,
}

impl Default for Proxy {
    fn default() -> Self {
        Proxy {
            connect_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(600),
            buffer: tunnel::PIECE,
            most: tunnel::MOST,
            upload_rate: None,
            download_rate: None,
            next: true,
            tries: 0,
            next_timeout: Duration::ZERO,
            proxy_protocol: None,
            half_close: false,
            requests: 0,
            responses: None,
            bind: None,
            keepalive: false,
            rcvbuf: None,
            sndbuf: None,
        }
    }
}

impl Proxy {
    /// Options of a connection to a server, from this local address and with this deadline.
    pub fn options(&self, from: Option<SocketAddr>, until: Instant) -> ConnectOptions {
        ConnectOptions {
            deadline: Some(until),
            bind: from.map(Into::into),
            transparent: self.bind.as_ref().is_some_and(|bind| bind.transparent),
            keepalive: self.keepalive,
            rcvbuf: self.rcvbuf,
            sndbuf: self.sndbuf,
            ..ConnectOptions::default()
        }
    }
}

impl StreamConf {
    pub(crate) fn new(error_log: Arc<Log>) -> StreamConf {
        StreamConf {
            error_log,
            resolver: None,
            resolver_timeout: Duration::from_secs(30),
            proxy_protocol_timeout: Duration::from_secs(30),
            preread_timeout: Duration::from_secs(30),
            preread_buffer: 16 * 1024,
            threshold: THRESHOLD,
            tcp_nodelay: true,
            ssl_preread: false,
            believed: Vec::new(),
            access: Rules::default(),
            limits: Limits::default(),
            refusal: LimitLogging { log_level: Level::Error, dry_run: false },
            log: log::Conf::default(),
            proxy: Proxy::default(),
            status_zone: None,
            health_timeout: Duration::from_secs(5),
            tls: TlsConf::default(),
            sets: Vec::new(),
            scripts: PhaseScripts::default(),
            content: SessionContent::None,
        }
    }
}

/// `ssl_...`, `proxy_ssl_...`
#[derive(Debug, Clone)]
pub struct TlsConf {
    pub(crate) server: server::Conf,
    /// The context that these settings make.
    pub context: Option<Arc<ServerContext>>,
    pub(crate) handshake_timeout: Duration,
    pub(crate) alpn: Vec<Vec<u8>>,
    /// `proxy_ssl`
    pub to_servers: bool,
    pub(crate) client: client::Settings,
}

impl Default for TlsConf {
    fn default() -> Self {
        TlsConf {
            server: server::Conf::default(),
            context: None,
            handshake_timeout: Duration::from_secs(60),
            alpn: Vec::new(),
            to_servers: false,
            client: client::Settings::default(),
        }
    }
}

/// Parses the address of `pass`. No name is resolved. Errors have nginx's texts.
pub fn listener(text: &[u8]) -> Result<Address, &'static str> {
    let url = Url::parse(text, false)?;
    match (url.address, url.port) {
        (None, _) => Err("no addresses"),
        (Some(Host::Unix(path)), _) => Ok(Address::Unix(path)),
        (Some(Host::Ip(_)), None) => Err("no port"),
        (Some(Host::Ip(ip)), Some(port)) => Ok(Address::Inet((ip, port).into())),
    }
}
